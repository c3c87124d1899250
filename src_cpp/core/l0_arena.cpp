#include "core/l0_arena.hpp"

#include <algorithm>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string>

#include "core/errors.hpp"

namespace nexus {
namespace {

void require(bool holds, const char* what) {
    if (!holds) {
        throw std::logic_error(std::string("L0 arena: ") + what);
    }
}

}  // namespace

std::size_t common_prefix(std::span<const std::int32_t> left, std::span<const std::int32_t> right) noexcept {
    const std::size_t n = std::min(left.size(), right.size());
    constexpr std::size_t kStep = 16;
    std::size_t i = 0;
    while (i + kStep <= n && std::memcmp(&left[i], &right[i], kStep * sizeof(std::int32_t)) == 0) {
        i += kStep;
    }
    while (i < n && left[i] == right[i]) {
        ++i;
    }
    return i;
}

L0Arena::L0Arena(std::size_t n_slots, std::size_t reserved_tokens) {
    if (n_slots == 0 || n_slots > 4096) {
        throw std::invalid_argument("n_slots must be between 1 and 4096");
    }
    slots_.resize(n_slots);
    for (Slot& slot : slots_) {
        slot.tokens.reserve(reserved_tokens);
    }
    counters_.n_slots = n_slots;
}

std::size_t L0Arena::checked(int slot) const {
    if (slot < 0 || static_cast<std::size_t>(slot) >= slots_.size()) {
        throw std::out_of_range("slot " + std::to_string(slot) + " of " + std::to_string(slots_.size()));
    }
    return static_cast<std::size_t>(slot);
}

L0Arena::Slot& L0Arena::live_slot(int slot) {
    Slot& found = slots_[checked(slot)];
    if (!found.live) {
        throw std::invalid_argument("slot " + std::to_string(slot) + " holds no sequence");
    }
    return found;
}

L0Arena::Match L0Arena::match(std::span<const std::int32_t> tokens) {
    const std::scoped_lock guard(lock_.mutex);
    Match best;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        const Slot& slot = slots_[i];
        // To be longer than the best, a slot must at least agree on the token after it.
        if (!slot.live || slot.tokens.size() <= best.length || tokens.size() <= best.length ||
            slot.tokens[best.length] != tokens[best.length]) {
            continue;
        }
        const std::size_t length = common_prefix(slot.tokens, tokens);
        if (length > best.length) {
            best = {static_cast<int>(i), length};
        }
    }
    if (best.slot == kNoSlot) {
        ++counters_.misses;
        return best;
    }
    ++counters_.hits;
    counters_.matched_tokens += best.length;
    slots_[static_cast<std::size_t>(best.slot)].used_at = ++clock_;
    return best;
}

std::size_t L0Arena::free_or_oldest() const {
    std::size_t oldest = slots_.size();
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        if (!slots_[i].live) {
            return i;
        }
        if (slots_[i].pins == 0 && (oldest == slots_.size() || slots_[i].used_at < slots_[oldest].used_at)) {
            oldest = i;
        }
    }
    if (oldest == slots_.size()) {
        throw ArenaFull("all " + std::to_string(slots_.size()) + " sequence slots are pinned");
    }
    return oldest;
}

L0Arena::Bound L0Arena::bind(std::optional<int> slot, std::span<const std::int32_t> tokens) {
    const std::scoped_lock guard(lock_.mutex);
    const std::size_t index = slot ? checked(*slot) : free_or_oldest();
    Slot& target = slots_[index];
    if (target.tokens.capacity() < tokens.size()) {
        target.tokens.reserve(std::max(tokens.size(), 2 * target.tokens.capacity()));
        ++counters_.growths;
    }
    const bool evicted = !slot && target.live;
    target.tokens.assign(tokens.begin(), tokens.end());
    target.used_at = ++clock_;
    counters_.live += target.live ? 0U : 1U;
    counters_.evictions += evicted ? 1U : 0U;
    target.live = true;
    ++counters_.binds;
    return {static_cast<int>(index), evicted};
}

void L0Arena::pin(int slot) {
    const std::scoped_lock guard(lock_.mutex);
    Slot& target = live_slot(slot);
    counters_.pinned += target.pins == 0 ? 1U : 0U;
    ++target.pins;
}

void L0Arena::unpin(int slot) {
    const std::scoped_lock guard(lock_.mutex);
    Slot& target = live_slot(slot);
    if (target.pins == 0) {
        throw std::invalid_argument("slot " + std::to_string(slot) + " is not pinned");
    }
    --target.pins;
    counters_.pinned -= target.pins == 0 ? 1U : 0U;
}

void L0Arena::release(int slot) {
    const std::scoped_lock guard(lock_.mutex);
    Slot& target = live_slot(slot);
    if (target.pins != 0) {
        throw std::invalid_argument("slot " + std::to_string(slot) + " is pinned");
    }
    target.tokens.clear();
    target.live = false;
    --counters_.live;
    ++counters_.releases;
}

std::vector<std::int32_t> L0Arena::tokens(int slot) const {
    const std::scoped_lock guard(lock_.mutex);
    return slots_[checked(slot)].tokens;
}

L0Arena::Counters L0Arena::counters() const {
    const std::scoped_lock guard(lock_.mutex);
    return counters_;
}

void L0Arena::check_integrity() const {
    const std::scoped_lock guard(lock_.mutex);
    std::size_t live = 0;
    std::size_t pinned = 0;
    std::set<std::uint64_t> times;
    for (const Slot& slot : slots_) {
        require(slot.live || (slot.tokens.empty() && slot.pins == 0), "an empty slot holds and pins nothing");
        require(slot.used_at <= clock_, "no slot was used in the future");
        require(!slot.live || times.insert(slot.used_at).second,
                "no two live slots were used at the same time");
        live += slot.live ? 1U : 0U;
        pinned += slot.pins != 0 ? 1U : 0U;
    }
    require(live == counters_.live && pinned == counters_.pinned, "counters agree with the slots");
}

}  // namespace nexus
