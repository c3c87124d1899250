// The L0 arena against a plain model of it, then under several threads, and its hits against a counting
// allocator.

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/errors.hpp"
#include "core/l0_arena.hpp"
#include "tests/check.hpp"
#include "tests/count_allocations.hpp"

using nexus::ArenaFull;
using nexus::L0Arena;
using nexus::testing::throws;
using Tokens = std::vector<std::int32_t>;

namespace {

std::size_t naive_prefix(const Tokens& left, const Tokens& right) {
    std::size_t n = 0;
    while (n < left.size() && n < right.size() && left[n] == right[n]) {
        ++n;
    }
    return n;
}

Tokens random_tokens(std::mt19937& random) {
    Tokens tokens(random() % 80);
    for (std::int32_t& token : tokens) {
        token = static_cast<std::int32_t>(random() % 50 == 0);  // long shared runs
    }
    return tokens;
}

void test_common_prefix() {
    std::mt19937 random(2);
    for (int round = 0; round < 3000; ++round) {
        const Tokens left = random_tokens(random);
        const Tokens right = random_tokens(random);
        CHECK(nexus::common_prefix(left, right) == naive_prefix(left, right));
        CHECK(nexus::common_prefix(left, left) == left.size());
    }
}

// What the arena should do, written without regard to speed.
struct Model {
    struct Slot {
        std::optional<Tokens> tokens;
        int pins = 0;
        int used_at = 0;
    };
    std::vector<Slot> slots;
    int clock = 0;

    L0Arena::Match match(const Tokens& tokens) {
        L0Arena::Match best;
        for (std::size_t i = 0; i < slots.size(); ++i) {
            const std::size_t length = slots[i].tokens ? naive_prefix(*slots[i].tokens, tokens) : 0;
            if (length > best.length) {
                best = {static_cast<int>(i), length};
            }
        }
        if (best.slot >= 0) {
            slots[static_cast<std::size_t>(best.slot)].used_at = ++clock;
        }
        return best;
    }

    std::optional<std::size_t> choose() const {
        std::optional<std::size_t> oldest;
        for (std::size_t i = 0; i < slots.size(); ++i) {
            if (!slots[i].tokens) {
                return i;
            }
            if (slots[i].pins == 0 && (!oldest || slots[i].used_at < slots[*oldest].used_at)) {
                oldest = i;
            }
        }
        return oldest;
    }
};

void step(L0Arena& arena, Model& model, std::mt19937& random) {
    const auto any = static_cast<std::size_t>(random() % model.slots.size());
    Model::Slot& slot = model.slots[any];
    const int index = static_cast<int>(any);
    const Tokens tokens = random_tokens(random);
    switch (random() % 6) {
        case 0: {
            const auto found = arena.match(tokens);
            const auto wanted = model.match(tokens);
            CHECK(found.slot == wanted.slot && found.length == wanted.length);
            break;
        }
        case 1: {
            const auto wanted = model.choose();
            if (!wanted) {
                CHECK(throws<ArenaFull>([&] { arena.bind(std::nullopt, tokens); }));
                break;
            }
            Model::Slot& chosen = model.slots[*wanted];
            const auto bound = arena.bind(std::nullopt, tokens);
            CHECK(bound.slot == static_cast<int>(*wanted) && bound.evicted == chosen.tokens.has_value());
            chosen.tokens = tokens;
            chosen.used_at = ++model.clock;
            break;
        }
        case 2:
            CHECK(arena.bind(index, tokens).slot == index);
            slot.tokens = tokens;
            slot.used_at = ++model.clock;
            break;
        case 3:
            if (slot.tokens) {
                arena.pin(index);
                ++slot.pins;
            } else {
                CHECK(throws<std::invalid_argument>([&] { arena.pin(index); }));
            }
            break;
        case 4:
            if (slot.pins > 0) {
                arena.unpin(index);
                --slot.pins;
            } else {
                CHECK(throws<std::invalid_argument>([&] { arena.unpin(index); }));
            }
            break;
        default:
            if (slot.tokens && slot.pins == 0) {
                arena.release(index);
                slot.tokens.reset();
            } else {
                CHECK(throws<std::invalid_argument>([&] { arena.release(index); }));
            }
    }
    arena.check_integrity();
    CHECK(arena.tokens(index) == slot.tokens.value_or(Tokens{}));
}

void test_against_the_model() {
    for (std::uint32_t seed = 0; seed < 20; ++seed) {
        std::mt19937 random(seed);
        L0Arena arena(1 + seed % 7, 16);
        Model model;
        model.slots.resize(1 + seed % 7);
        for (int i = 0; i < 500; ++i) {
            step(arena, model, random);
        }
    }
}

void test_least_recently_used_goes_first() {
    L0Arena arena;
    for (std::int32_t i = 0; i < 32; ++i) {
        CHECK(arena.bind(std::nullopt, Tokens{i, i}).slot == i);
    }
    CHECK(arena.match(Tokens{0, 0, 5}).slot == 0);  // slot 0 is fresh again
    arena.pin(1);
    CHECK(arena.bind(std::nullopt, Tokens{99}).slot == 2);
    const auto counters = arena.counters();
    CHECK(counters.live == 32 && counters.evictions == 1 && counters.pinned == 1 &&
          counters.matched_tokens == 2);
}

void test_a_hit_allocates_nothing() {
    L0Arena arena(32, 2048);
    Tokens tokens(2000, 7);
    for (std::int32_t i = 0; i < 32; ++i) {
        tokens[static_cast<std::size_t>(1000 + i)] = 8;
        arena.bind(std::nullopt, tokens);
    }
    const auto before = nexus::testing::n_allocations();
    for (int round = 0; round < 100; ++round) {
        const auto found = arena.match(tokens);
        arena.pin(found.slot);
        arena.bind(found.slot, tokens);
        arena.unpin(found.slot);
    }
    CHECK(nexus::testing::n_allocations() == before);
    CHECK(arena.counters().growths == 0 && arena.counters().hits == 100);
}

void test_threads() {
    L0Arena arena(8, 64);
    std::vector<std::thread> threads;
    for (std::uint32_t seed = 0; seed < 4; ++seed) {
        threads.emplace_back([&arena, seed] {
            std::mt19937 random(seed);
            for (int round = 0; round < 1500; ++round) {
                const Tokens tokens = random_tokens(random);
                const int slot = arena.bind(std::nullopt, tokens).slot;
                CHECK(slot >= 0 && slot < 8);
                const auto found = arena.match(tokens);
                CHECK(found.length <= tokens.size());
                CHECK(arena.tokens(slot).size() < 80);
            }
        });
    }
    for (int round = 0; round < 50; ++round) {
        arena.check_integrity();
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    arena.check_integrity();
    CHECK(arena.counters().binds == 6000);
}

void test_misuse_is_refused() {
    CHECK(throws<std::invalid_argument>([] { L0Arena{0}; }));
    L0Arena arena(2);
    CHECK(throws<std::out_of_range>([&] { arena.pin(2); }));
    CHECK(throws<std::out_of_range>([&] { arena.bind(-1, Tokens{1}); }));
    arena.bind(0, Tokens{1});
    arena.bind(1, Tokens{2});
    arena.pin(0);
    arena.pin(1);
    CHECK(throws<ArenaFull>([&] { arena.bind(std::nullopt, Tokens{3}); }));
    CHECK(throws<std::invalid_argument>([&] { arena.release(0); }));
    CHECK(arena.match(Tokens{}).slot == L0Arena::kNoSlot);
}

}  // namespace

int main() {
    test_common_prefix();
    test_against_the_model();
    test_least_recently_used_goes_first();
    test_a_hit_allocates_nothing();
    test_threads();
    test_misuse_is_refused();
    return nexus::testing::finish();
}
