#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <optional>
#include <span>
#include <vector>

#include "core/contended_mutex.hpp"
#include "core/op_words.hpp"

namespace nexus {

// Cache programs as a radix tree that shares their common beginnings. Tokens of appends lie on edges that
// split where programs part; drops, repos, splices and repairs are nodes of their own, so that programs that
// keep the same tokens but dropped the others at another time lie apart, and positional versions side by
// side.
//
// A program that is held somewhere (on a live sequence, in host memory, on disk) is an entry; the end of the
// edge where it ends keeps its number however edges split. An edge never reaches across a bound of a drop
// below it, so that an edge is dropped as a whole or not at all. A match allocates nothing. Any thread may
// call.
class alignas(kContentionLine) OpTree {
  public:
    using Node = std::int32_t;
    static constexpr Node kRoot = 0;
    static constexpr Node kNone = -1;

    // Where the state of an entry is; values of a bit mask.
    enum Tier : std::uint8_t { kNowhere = 0, kLive = 1, kHost = 2, kDisk = 4 };
    static constexpr std::uint8_t kTiers = kLive | kHost | kDisk;

    struct Match {
        Node node = kRoot;          // the deepest node of which something matched
        std::size_t inside = 0;     // how many of its words matched; all of them but for an edge
        std::size_t tokens = 0;     // logical tokens that matched
        std::size_t ops = 0;        // whole operations that matched
        std::size_t op_tokens = 0;  // tokens of the append after them that matched
        Node entry = kNone;         // the deepest entry on the way
        bool complete = false;      // the whole program is in the tree
    };
    struct Info {
        Node node = kNone;
        Node parent = kNone;
        std::optional<OpKind> kind;  // none for the root
        std::size_t start = 0;       // logical index of its first token
        std::size_t tokens = 0;      // that it adds to the sequence
        std::size_t dropped = 0;     // of them that every longest program through it has dropped
        std::uint32_t locks = 0;     // at or below it
        std::uint8_t entry = kNowhere;
        std::uint8_t tiers = kNowhere;  // of the entries at or below it in which all its tokens are active
        std::uint64_t used_at = 0;
    };
    struct Counters {
        std::size_t bytes = 0;          // of its memory
        std::uint64_t allocations = 0;  // that it ever made
        std::size_t max_words = 0;
        std::size_t words = 0;
        std::size_t nodes = 0;  // the root not counted
        std::size_t entries = 0;
        std::size_t locks = 0;
        std::uint64_t matches = 0;
        std::uint64_t complete_matches = 0;
        std::uint64_t matched_tokens = 0;
        std::uint64_t inserts = 0;
        std::uint64_t removes = 0;
        std::uint64_t splits = 0;
        std::uint64_t evictions = 0;
    };

    // Holds at most `max_words` words of tokens and other operands.
    explicit OpTree(std::size_t max_words);
    OpTree(const OpTree&) = delete;
    OpTree& operator=(const OpTree&) = delete;
    OpTree(OpTree&&) = delete;
    OpTree& operator=(OpTree&&) = delete;
    ~OpTree() = default;

    // The longest beginning of the program that is in the tree; whole nodes on the way count as used now.
    Match match(std::span<const std::int32_t> program);
    // Makes the program an entry in a tier, in addition to others it may be in; returns its node. Throws
    // std::invalid_argument for words that are no program, ArenaFull where there is no room; then nothing has
    // changed.
    Node insert(std::span<const std::int32_t> program, Tier tier);
    // The program is in that tier no more; what only led to it goes. Throws std::invalid_argument when it is
    // not there, or is locked and in no other tier.
    void remove(Node entry, Tier tier);
    // Keeps a node and everything above it.
    void lock(Node node);
    void unlock(Node node);
    // Takes the longest program that nobody has locked and that was used longest ago out of every tier;
    // returns its node, which is gone then, or kNone.
    Node evict();

    // An entry in one of `tiers` that begins with the state at `inside` words of `node` and does nothing but
    // append and splice behind it, so that the state can be cut out of the entry's. kNone when none is found
    // within `kSourceSteps` nodes.
    [[nodiscard]] Node source(Node node, std::uint8_t tiers) const;
    // Words of the program that ends at a node.
    [[nodiscard]] std::vector<std::int32_t> program(Node node) const;
    // Nodes from below the root to `node`.
    [[nodiscard]] std::vector<Node> path(Node node) const;
    // Every node, parents before children.
    [[nodiscard]] std::vector<Info> survey() const;
    [[nodiscard]] Counters counters() const;
    // Throws std::logic_error when the structure contradicts itself.
    void check_integrity() const;

    static constexpr std::size_t kSourceSteps = 256;

  private:
    // Ordinary memory, counted.
    class Memory final : public std::pmr::memory_resource {
      public:
        std::size_t bytes = 0;
        std::uint64_t allocations = 0;

      private:
        void* do_allocate(std::size_t n_bytes, std::size_t alignment) override;
        void do_deallocate(void* block, std::size_t n_bytes, std::size_t alignment) override;
        [[nodiscard]] bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
            return this == &other;
        }
    };
    struct Item {
        explicit Item(Memory* memory) : words(memory) {}

        std::pmr::vector<std::int32_t> words;
        std::uint64_t key = 0;
        std::uint64_t used_at = 0;
        std::size_t start = 0;
        std::size_t tokens = 0;
        Node parent = kNone;
        Node first_child = kNone;
        Node next = kNone;  // siblings
        Node previous = kNone;
        std::uint32_t locks = 0;      // at or below
        std::uint32_t own_locks = 0;  // at this very node
        OpKind kind = OpKind::kRepos;
        std::uint8_t entry = kNowhere;
        bool in_use = false;
    };

    [[nodiscard]] Item& item(Node node) noexcept { return items_[static_cast<std::size_t>(node)]; }
    [[nodiscard]] const Item& item(Node node) const noexcept {
        return items_[static_cast<std::size_t>(node)];
    }
    [[nodiscard]] Node checked(Node node) const;
    [[nodiscard]] std::vector<Node> way_to(Node node) const;  // the lock is held

    // The table of children, by parent and by what they begin with.
    [[nodiscard]] std::size_t home(Node parent, std::uint64_t key) const noexcept;
    [[nodiscard]] Node find_child(Node parent, const OpWords& op) const noexcept;
    [[nodiscard]] bool begins(const Item& child, const OpWords& op) const noexcept;
    void enter(Node node);
    void leave(Node node);
    void reserve_table();

    [[nodiscard]] Match find(std::span<const std::int32_t> program) const;
    void walk_edges(Match& found, std::span<const std::int32_t> tokens) const noexcept;
    void touch(Node node) noexcept;
    [[nodiscard]] std::size_t words_lacking(std::span<const std::int32_t> program, const Match& found) const;
    Node extend(Node node, const OpWords& op);
    Node add(Node parent, const OpWords& op);
    Node split(Node node, std::size_t at);
    void split_above(Node node, std::size_t bound);
    void link(Node node);
    void unlink(Node node);
    void prune(Node node);
    void erase(Node node);
    [[nodiscard]] bool has_tokens(const Item& node) const noexcept;
    [[nodiscard]] std::vector<Node> order() const;
    [[nodiscard]] Info described(Node node) const;
    void check_node(Node node) const;
    void check_bounds(Node node) const;

    mutable ContendedMutex lock_;
    // Guarded by the mutex.
    Memory memory_;
    std::pmr::vector<Item> items_{&memory_};
    std::pmr::vector<Node> free_{&memory_};
    std::pmr::vector<Node> table_{&memory_};  // open addressing, a power of two
    std::size_t in_table_ = 0;
    std::uint64_t clock_ = 0;
    Counters counters_;
};

static_assert(alignof(OpTree) == kContentionLine, "a tree starts on a line of its own");

}  // namespace nexus
