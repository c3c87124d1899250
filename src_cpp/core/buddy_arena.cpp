#include "core/buddy_arena.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>

#include "core/errors.hpp"

namespace nexus {
namespace {

constexpr std::size_t kBaseAlignment = std::size_t{2} << 20U;

void require(bool holds, const char* what) {
    if (!holds) {
        throw std::logic_error(std::string("buddy arena: ") + what);
    }
}

}  // namespace

BuddyArena::BuddyArena(std::size_t capacity_bytes, std::size_t min_block) : min_block_(min_block) {
    if (!std::has_single_bit(min_block) || min_block < 64) {
        throw std::invalid_argument("min_block must be a power of two of at least 64");
    }
    const std::size_t n_blocks = capacity_bytes / min_block;
    if (n_blocks == 0 || n_blocks > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
        throw std::invalid_argument("capacity_bytes must hold between 1 and 2^31 - 1 blocks of min_block");
    }
    units_.resize(n_blocks);
    counters_.capacity_bytes = n_blocks * min_block;
    mapped_bytes_ = counters_.capacity_bytes + kBaseAlignment;
    void* region = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (region == MAP_FAILED) {
        throw std::bad_alloc();
    }
    region_ = static_cast<std::byte*>(region);
    const auto address = reinterpret_cast<std::uintptr_t>(region);
    base_ = region_ + (kBaseAlignment - address % kBaseAlignment) % kBaseAlignment;
    free_heads_.fill(kNone);
    seed_free_blocks();
}

BuddyArena::~BuddyArena() { munmap(region_, mapped_bytes_); }

// The largest aligned power-of-two blocks that tile the capacity, so that it need not be one itself.
void BuddyArena::seed_free_blocks() {
    std::int32_t index = 0;
    while (index < n_units()) {
        const auto left = static_cast<std::uint32_t>(n_units() - index);
        const auto fits = static_cast<int>(std::bit_width(left)) - 1;
        const int aligned = index == 0 ? fits : std::countr_zero(static_cast<std::uint32_t>(index));
        const int order = std::min(fits, aligned);
        push_free(index, order);
        index += std::int32_t{1} << order;
    }
}

int BuddyArena::order_for(std::size_t n_bytes) const noexcept {
    const std::size_t n_blocks = (n_bytes - 1) / min_block_ + 1;
    return static_cast<int>(std::bit_width(n_blocks - 1));
}

void BuddyArena::push_free(std::int32_t index, int order) noexcept {
    const auto slot = static_cast<std::size_t>(order);
    Unit& block = unit(index);
    block.mark = Mark::kFree;
    block.order = static_cast<std::uint8_t>(order);
    block.previous = kNone;
    block.next = free_heads_[slot];
    if (block.next != kNone) {
        unit(block.next).previous = index;
    }
    free_heads_[slot] = index;
    free_orders_ |= std::uint64_t{1} << slot;
}

void BuddyArena::remove_free(std::int32_t index) noexcept {
    Unit& block = unit(index);
    const std::size_t slot = block.order;
    if (block.previous != kNone) {
        unit(block.previous).next = block.next;
    } else {
        free_heads_[slot] = block.next;
    }
    if (block.next != kNone) {
        unit(block.next).previous = block.previous;
    }
    if (free_heads_[slot] == kNone) {
        free_orders_ &= ~(std::uint64_t{1} << slot);
    }
    block.mark = Mark::kInside;
}

int BuddyArena::smallest_free_order(int order) const noexcept {
    if (order >= kMaxOrders) {
        return -1;
    }
    const std::uint64_t enough = free_orders_ & (~std::uint64_t{0} << static_cast<unsigned>(order));
    return enough == 0 ? -1 : std::countr_zero(enough);
}

std::span<std::byte> BuddyArena::allocate(std::size_t n_bytes) {
    if (n_bytes == 0) {
        throw std::invalid_argument("an arena block has at least one byte");
    }
    const int wanted = order_for(n_bytes);
    const std::scoped_lock guard(lock_.mutex);
    int order = smallest_free_order(wanted);
    if (order < 0) {
        ++counters_.refusals;
        throw ArenaFull("no free block of " + std::to_string(n_bytes) +
                        " bytes: " + std::to_string(counters_.used_bytes) + " of " +
                        std::to_string(counters_.capacity_bytes) + " bytes are in use");
    }
    const std::int32_t index = free_heads_[static_cast<std::size_t>(order)];
    remove_free(index);
    for (; order > wanted; ++counters_.splits) {
        --order;
        push_free(index + (std::int32_t{1} << order), order);
    }
    Unit& block = unit(index);
    block.mark = Mark::kUsed;
    block.order = static_cast<std::uint8_t>(order);
    block.requested = n_bytes;
    counters_.used_bytes += min_block_ << static_cast<unsigned>(order);
    counters_.requested_bytes += n_bytes;
    counters_.peak_used_bytes = std::max(counters_.peak_used_bytes, counters_.used_bytes);
    ++counters_.live;
    ++counters_.allocations;
    return {base_ + static_cast<std::size_t>(index) * min_block_, n_bytes};
}

std::int32_t BuddyArena::mergeable_buddy(std::int32_t index, int order) const noexcept {
    const std::int64_t size = std::int64_t{1} << order;
    const std::int64_t buddy = std::int64_t{index} ^ size;
    if (buddy + size > n_units()) {
        return kNone;
    }
    const Unit& other = unit(static_cast<std::int32_t>(buddy));
    return other.mark == Mark::kFree && other.order == order ? static_cast<std::int32_t>(buddy) : kNone;
}

void BuddyArena::release(const std::byte* block) {
    const std::less<> before;
    const std::scoped_lock guard(lock_.mutex);
    if (before(block, base_) || !before(block, base_ + counters_.capacity_bytes)) {
        throw std::invalid_argument("the address does not lie in this arena");
    }
    const auto offset = static_cast<std::size_t>(block - base_);
    auto index = static_cast<std::int32_t>(offset / min_block_);
    if (offset % min_block_ != 0 || unit(index).mark != Mark::kUsed) {
        throw std::invalid_argument("the address is not that of a block in use");
    }
    Unit& freed = unit(index);
    int order = freed.order;
    counters_.used_bytes -= min_block_ << static_cast<unsigned>(order);
    counters_.requested_bytes -= freed.requested;
    --counters_.live;
    ++counters_.releases;
    freed.mark = Mark::kInside;
    for (std::int32_t buddy = mergeable_buddy(index, order); buddy != kNone;
         buddy = mergeable_buddy(index, order)) {
        remove_free(buddy);
        index = std::min(index, buddy);
        ++order;
        ++counters_.merges;
    }
    push_free(index, order);
}

BuddyArena::Counters BuddyArena::counters() const {
    const std::scoped_lock guard(lock_.mutex);
    Counters result = counters_;
    if (free_orders_ != 0) {
        const auto largest = static_cast<unsigned>(std::bit_width(free_orders_) - 1);
        result.largest_free_bytes = min_block_ << largest;
    }
    return result;
}

// Walks the blocks in address order; returns how many are free.
std::size_t BuddyArena::check_blocks() const {
    std::size_t used_bytes = 0;
    std::size_t requested_bytes = 0;
    std::size_t live = 0;
    std::size_t n_free = 0;
    std::int32_t index = 0;
    while (index < n_units()) {
        const Unit& block = unit(index);
        const std::int64_t size = std::int64_t{1} << block.order;
        require(block.mark != Mark::kInside, "a block starts where the one before it ends");
        require(index % size == 0 && index + size <= n_units(), "a block is aligned and inside the region");
        for (std::int64_t inside = index + 1; inside < index + size; ++inside) {
            require(unit(static_cast<std::int32_t>(inside)).mark == Mark::kInside, "blocks do not overlap");
        }
        if (block.mark == Mark::kUsed) {
            ++live;
            used_bytes += min_block_ << block.order;
            requested_bytes += block.requested;
        } else {
            ++n_free;
            require(mergeable_buddy(index, block.order) == kNone, "free buddies are merged");
        }
        index += static_cast<std::int32_t>(size);
    }
    require(used_bytes == counters_.used_bytes && requested_bytes == counters_.requested_bytes &&
                live == counters_.live,
            "counters agree with the blocks");
    return n_free;
}

std::size_t BuddyArena::check_free_lists() const {
    std::size_t n_free = 0;
    for (std::size_t order = 0; order < free_heads_.size(); ++order) {
        const bool marked = (free_orders_ >> order & 1U) != 0;
        require(marked == (free_heads_[order] != kNone), "the order mask agrees with the free lists");
        std::int32_t previous = kNone;
        for (std::int32_t index = free_heads_[order]; index != kNone; index = unit(index).next) {
            require(unit(index).mark == Mark::kFree && unit(index).order == order, "listed blocks are free");
            require(unit(index).previous == previous, "free lists are linked both ways");
            previous = index;
            ++n_free;
        }
    }
    return n_free;
}

void BuddyArena::check_integrity() const {
    const std::scoped_lock guard(lock_.mutex);
    require(check_blocks() == check_free_lists(), "every free block is listed once");
    require(counters_.allocations - counters_.releases == counters_.live,
            "live blocks are those not released");
}

}  // namespace nexus
