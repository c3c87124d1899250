// The buddy arena against a shadow that paints every block, then under several threads, and its hot path
// against a counting allocator.

#include <cstdint>
#include <cstdlib>
#include <new>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/buddy_arena.hpp"
#include "core/errors.hpp"
#include "tests/check.hpp"
#include "tests/count_allocations.hpp"

using nexus::ArenaFull;
using nexus::BuddyArena;
using nexus::testing::throws;

namespace {

struct Painted {
    std::span<std::byte> bytes;
    std::byte colour{};

    Painted(std::span<std::byte> block, std::byte paint) : bytes(block), colour(paint) {
        for (std::byte& byte : bytes) {
            byte = colour;
        }
    }
    [[nodiscard]] bool intact() const {
        for (const std::byte byte : bytes) {
            if (byte != colour) {
                return false;
            }
        }
        return true;
    }
};

void allocate_and_release(BuddyArena& arena, std::uint32_t seed, int rounds, bool check_each_round) {
    std::mt19937 random(seed);
    std::vector<Painted> live;
    for (int round = 0; round < rounds; ++round) {
        if (!live.empty() && random() % 2 == 0) {
            const std::size_t victim = random() % live.size();
            CHECK(live[victim].intact());
            arena.release(live[victim].bytes.data());
            live[victim] = live.back();
            live.pop_back();
        } else {
            try {
                live.emplace_back(arena.allocate(1 + random() % 3000), static_cast<std::byte>(random()));
            } catch (const ArenaFull&) {
                CHECK(!live.empty() || !check_each_round);
            }
        }
        if (check_each_round) {
            arena.check_integrity();
        }
    }
    for (const Painted& block : live) {
        CHECK(block.intact());
        arena.release(block.bytes.data());
    }
}

void test_random_use_keeps_blocks_apart() {
    BuddyArena arena(100 * 64 + 17, 64);  // neither a power of two nor whole blocks
    CHECK(arena.counters().capacity_bytes == 6400);
    allocate_and_release(arena, 5, 5000, true);
    arena.check_integrity();
    const auto counters = arena.counters();
    CHECK(counters.live == 0 && counters.used_bytes == 0 && counters.requested_bytes == 0);
    CHECK(counters.allocations == counters.releases && counters.splits == counters.merges);
    CHECK(counters.largest_free_bytes == 4096 && counters.peak_used_bytes <= 6400);
}

void test_it_fills_up_and_becomes_whole_again() {
    BuddyArena arena(1U << 16U, 1024);
    std::vector<std::byte*> blocks;
    for (int i = 0; i < 64; ++i) {
        blocks.push_back(arena.allocate(1000).data());
    }
    CHECK(std::set<std::byte*>(blocks.begin(), blocks.end()).size() == 64);
    CHECK(throws<ArenaFull>([&] { static_cast<void>(arena.allocate(1)); }));
    CHECK(arena.counters().refusals == 1 && arena.counters().used_bytes == 1U << 16U);
    for (std::byte* block : blocks) {
        arena.release(block);
    }
    CHECK(arena.allocate(1U << 16U).size() == 1U << 16U);
    CHECK(throws<ArenaFull>([&] { static_cast<void>(arena.allocate(1U << 17U)); }));
    arena.check_integrity();
}

void test_blocks_are_aligned_to_their_size() {
    BuddyArena arena(1U << 22U, 4096);
    for (const std::size_t size : {4096U, 8192U, 65536U, 1U << 20U}) {
        const auto block = arena.allocate(size);
        CHECK(reinterpret_cast<std::uintptr_t>(block.data()) % size == 0);
    }
}

void test_misuse_is_refused() {
    CHECK(throws<std::invalid_argument>([] { BuddyArena{100, 4096}; }));
    CHECK(throws<std::invalid_argument>([] { BuddyArena{1U << 20U, 100}; }));
    BuddyArena arena(1U << 16U, 1024);
    CHECK(throws<std::invalid_argument>([&] { static_cast<void>(arena.allocate(0)); }));
    CHECK(throws<ArenaFull>([&] { static_cast<void>(arena.allocate(~std::size_t{0})); }));
    const auto block = arena.allocate(5000);
    CHECK(throws<std::invalid_argument>([&] { arena.release(block.data() + 1); }));
    CHECK(throws<std::invalid_argument>([&] { arena.release(block.data() + 1024); }));
    CHECK(throws<std::invalid_argument>([&] { arena.release(block.data() + (1U << 20U)); }));
    arena.release(block.data());
    CHECK(throws<std::invalid_argument>([&] { arena.release(block.data()); }));
    arena.check_integrity();
}

void test_the_hot_path_allocates_nothing() {
    BuddyArena arena(1U << 20U, 4096);
    const auto before = nexus::testing::n_allocations();
    for (int round = 0; round < 100; ++round) {
        const auto small = arena.allocate(5000);
        const auto large = arena.allocate(70000);
        arena.release(small.data());
        arena.release(large.data());
    }
    CHECK(nexus::testing::n_allocations() == before);
}

void test_threads() {
    BuddyArena arena(1U << 20U, 256);
    std::vector<std::thread> threads;
    for (std::uint32_t seed = 0; seed < 4; ++seed) {
        threads.emplace_back([&arena, seed] { allocate_and_release(arena, seed, 3000, false); });
    }
    for (int round = 0; round < 50; ++round) {
        arena.check_integrity();
        CHECK(arena.counters().used_bytes <= arena.counters().capacity_bytes);
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    arena.check_integrity();
    CHECK(arena.counters().live == 0);
}

}  // namespace

int main() {
    test_random_use_keeps_blocks_apart();
    test_it_fills_up_and_becomes_whole_again();
    test_blocks_are_aligned_to_their_size();
    test_misuse_is_refused();
    test_the_hot_path_allocates_nothing();
    test_threads();
    return nexus::testing::finish();
}
