#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/contended_mutex.hpp"

namespace nexus {

// One region of memory handed out in power-of-two blocks; freed neighbours merge again. All bookkeeping is
// made in the constructor: allocate and release touch no other allocator. Any thread may call.
// NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding): the padding is the point
class alignas(kContentionLine) BuddyArena {
  public:
    struct Counters {
        std::size_t capacity_bytes = 0;
        std::size_t used_bytes = 0;       // blocks handed out, as rounded up
        std::size_t requested_bytes = 0;  // what their owners asked for
        std::size_t peak_used_bytes = 0;
        std::size_t largest_free_bytes = 0;
        std::size_t live = 0;
        std::uint64_t allocations = 0;
        std::uint64_t releases = 0;
        std::uint64_t refusals = 0;
        std::uint64_t splits = 0;
        std::uint64_t merges = 0;
    };

    // `capacity_bytes` is rounded down to whole blocks of `min_block` bytes, a power of two of at least 64.
    // Pages that were never written take no memory.
    explicit BuddyArena(std::size_t capacity_bytes, std::size_t min_block = 4096);
    ~BuddyArena();
    BuddyArena(const BuddyArena&) = delete;
    BuddyArena& operator=(const BuddyArena&) = delete;
    BuddyArena(BuddyArena&&) = delete;
    BuddyArena& operator=(BuddyArena&&) = delete;

    // `n_bytes` bytes, not cleared, aligned to their block up to 2 MB. Throws ArenaFull.
    std::span<std::byte> allocate(std::size_t n_bytes);
    // Gives back what `allocate` returned; throws std::invalid_argument for any other address.
    void release(const std::byte* block);

    [[nodiscard]] Counters counters() const;
    [[nodiscard]] std::size_t min_block() const noexcept { return min_block_; }
    // Throws std::logic_error when the bookkeeping contradicts itself.
    void check_integrity() const;

  private:
    static constexpr int kMaxOrders = 48;
    static constexpr std::int32_t kNone = -1;
    enum class Mark : std::uint8_t { kInside, kFree, kUsed };  // of the block that starts at this unit
    struct Unit {
        std::size_t requested = 0;
        std::int32_t next = kNone;
        std::int32_t previous = kNone;
        std::uint8_t order = 0;
        Mark mark = Mark::kInside;
    };

    [[nodiscard]] Unit& unit(std::int32_t index) noexcept { return units_[static_cast<std::size_t>(index)]; }
    [[nodiscard]] const Unit& unit(std::int32_t index) const noexcept {
        return units_[static_cast<std::size_t>(index)];
    }
    [[nodiscard]] int order_for(std::size_t n_bytes) const noexcept;
    [[nodiscard]] std::int32_t n_units() const noexcept { return static_cast<std::int32_t>(units_.size()); }
    void seed_free_blocks();
    void push_free(std::int32_t index, int order) noexcept;
    void remove_free(std::int32_t index) noexcept;
    [[nodiscard]] int smallest_free_order(int order) const noexcept;
    [[nodiscard]] std::int32_t mergeable_buddy(std::int32_t index, int order) const noexcept;
    [[nodiscard]] std::size_t check_blocks() const;
    [[nodiscard]] std::size_t check_free_lists() const;

    // Read by everyone, written by nobody after construction.
    std::size_t min_block_;
    std::byte* region_ = nullptr;  // as mapped
    std::byte* base_ = nullptr;    // the first 2 MB boundary in it
    std::size_t mapped_bytes_ = 0;

    mutable ContendedMutex lock_;

    // Guarded by the mutex.
    std::vector<Unit> units_;
    std::array<std::int32_t, kMaxOrders> free_heads_{};
    std::uint64_t free_orders_ = 0;  // bit k: a free block of order k exists
    Counters counters_;
};

static_assert(alignof(BuddyArena) == kContentionLine, "an arena starts on a line of its own");

}  // namespace nexus
