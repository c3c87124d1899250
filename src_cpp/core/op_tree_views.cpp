// What can be read off a tree: entries to cut from, programs, the survey, and whether it contradicts itself.

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/op_tree.hpp"

namespace nexus {
namespace {

using Ranges = std::vector<std::pair<std::size_t, std::size_t>>;

void require(bool holds, const char* what) {
    if (!holds) {
        throw std::logic_error(std::string("op tree: ") + what);
    }
}

Ranges common(const Ranges& left, const Ranges& right) {
    Ranges both;
    for (std::size_t i = 0, j = 0; i < left.size() && j < right.size();) {
        const auto first = std::max(left[i].first, right[j].first);
        const auto last = std::min(left[i].second, right[j].second);
        if (first < last) {
            both.emplace_back(first, last);
        }
        (left[i].second < right[j].second ? i : j) += 1;
    }
    return both;
}

Ranges united(const Ranges& one, std::span<const std::int32_t> bounds) {
    Ranges all = one;
    for (std::size_t i = 0; i + 1 < bounds.size(); i += 2) {
        all.emplace_back(static_cast<std::size_t>(bounds[i]), static_cast<std::size_t>(bounds[i + 1]));
    }
    std::sort(all.begin(), all.end());
    Ranges merged;
    for (const auto& range : all) {
        if (!merged.empty() && range.first <= merged.back().second) {
            merged.back().second = std::max(merged.back().second, range.second);
        } else {
            merged.push_back(range);
        }
    }
    return merged;
}

std::size_t covered(const Ranges& ranges, std::size_t start, std::size_t stop) {
    std::size_t count = 0;
    for (const auto& [first, last] : ranges) {
        const auto begin = std::max(first, start);
        const auto end = std::min(last, stop);
        count += begin < end ? end - begin : 0;
    }
    return count;
}

// Tokens that all of some programs have dropped; those of no program at all are not known.
class Dropped {
  public:
    void take(const Dropped& other) {
        if (other.ranges_) {
            take(*other.ranges_);
        }
    }
    void take(const Ranges& ranges) { ranges_ = ranges_ ? common(*ranges_, ranges) : ranges; }
    void drop(std::span<const std::int32_t> bounds) {
        if (ranges_) {
            ranges_ = united(*ranges_, bounds);
        }
    }
    [[nodiscard]] bool known() const { return ranges_.has_value(); }
    [[nodiscard]] std::size_t count(std::size_t start, std::size_t tokens) const {
        return ranges_ ? covered(*ranges_, start, start + tokens) : 0;
    }

  private:
    std::optional<Ranges> ranges_;
};

constexpr std::array<std::uint8_t, 3> kEachTier{OpTree::kLive, OpTree::kHost, OpTree::kDisk};

// Of the programs at or below a node: those that none continues, and those in each tier.
struct Below {
    Dropped longest;
    std::array<Dropped, kEachTier.size()> in_tier;

    // A program that ends here has dropped nothing since.
    void begin_here(bool leaf, std::uint8_t entry) {
        if (leaf) {
            longest.take(Ranges{});
        }
        for (std::size_t i = 0; i < kEachTier.size(); ++i) {
            if ((entry & kEachTier[i]) != 0) {
                in_tier[i].take(Ranges{});
            }
        }
    }
    void drop(std::span<const std::int32_t> bounds) {
        longest.drop(bounds);
        for (Dropped& each : in_tier) {
            each.drop(bounds);
        }
    }
    void take(const Below& child) {
        longest.take(child.longest);
        for (std::size_t i = 0; i < kEachTier.size(); ++i) {
            in_tier[i].take(child.in_tier[i]);
        }
    }
    // Tiers with a program in which these tokens, if there are any, are not all dropped.
    [[nodiscard]] std::uint8_t tiers(std::size_t start, std::size_t tokens) const {
        unsigned found = OpTree::kNowhere;
        for (std::size_t i = 0; i < kEachTier.size(); ++i) {
            if (in_tier[i].known() && (tokens == 0 || in_tier[i].count(start, tokens) < tokens)) {
                found |= kEachTier[i];
            }
        }
        return static_cast<std::uint8_t>(found);
    }
};

}  // namespace

OpTree::Node OpTree::source(Node node, std::uint8_t tiers) const {
    const std::scoped_lock guard(lock_.mutex);
    Node at = checked(node);
    for (std::size_t step = 0; step < kSourceSteps; ++step) {
        if ((item(at).entry & tiers) != 0) {
            return at;
        }
        // Depth first, through edges and splices only; links lead back up, so nothing is remembered.
        Node next = item(at).first_child;
        while (true) {
            while (next != kNone && !has_tokens(item(next))) {
                next = item(next).next;
            }
            if (next != kNone || at == node) {
                break;
            }
            next = item(at).next;
            at = item(at).parent;
        }
        if (next == kNone) {
            return kNone;
        }
        at = next;
    }
    return kNone;
}

std::vector<OpTree::Node> OpTree::path(Node node) const {
    const std::scoped_lock guard(lock_.mutex);
    return way_to(node);
}

std::vector<OpTree::Node> OpTree::way_to(Node node) const {
    std::vector<Node> found;
    for (Node at = checked(node); at != kRoot; at = item(at).parent) {
        found.push_back(at);
    }
    std::reverse(found.begin(), found.end());
    return found;
}

std::vector<std::int32_t> OpTree::program(Node node) const {
    const std::scoped_lock guard(lock_.mutex);
    const auto nodes = way_to(node);
    std::vector<std::int32_t> words;
    std::size_t head = 0;  // of the append that edges add to
    bool in_append = false;
    for (const Node at : nodes) {
        const Item& part = item(at);
        const bool edge = part.kind == OpKind::kAppend;
        if (!edge || !in_append) {
            head = words.size();
            words.push_back(static_cast<std::int32_t>(part.kind));
            words.push_back(0);
        }
        words.insert(words.end(), part.words.begin(), part.words.end());
        words[head + 1] += static_cast<std::int32_t>(part.words.size());
        in_append = edge;
    }
    return words;
}

std::vector<OpTree::Node> OpTree::order() const {
    std::vector<Node> nodes{kRoot};
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        for (Node child = item(nodes[i]).first_child; child != kNone; child = item(child).next) {
            nodes.push_back(child);
        }
    }
    return nodes;
}

OpTree::Info OpTree::described(Node node) const {
    const Item& at = item(node);
    Info info;
    info.node = node;
    info.parent = at.parent;
    info.kind = node == kRoot ? std::nullopt : std::optional(at.kind);
    info.start = at.start;
    info.tokens = at.tokens;
    info.locks = at.locks;
    info.entry = at.entry;
    info.used_at = at.used_at;
    return info;
}

std::vector<OpTree::Info> OpTree::survey() const {
    const std::scoped_lock guard(lock_.mutex);
    const auto nodes = order();
    std::vector<Below> below(items_.size());
    std::vector<Info> found(nodes.size());
    for (std::size_t i = nodes.size(); i-- > 0;) {
        const Item& at = item(nodes[i]);
        Below& own = below[static_cast<std::size_t>(nodes[i])];
        own.begin_here(at.first_child == kNone, at.entry);
        found[i] = described(nodes[i]);
        found[i].dropped = own.longest.count(at.start, at.tokens);
        found[i].tiers = own.tiers(at.start, at.tokens);
        if (nodes[i] != kRoot) {
            if (at.kind == OpKind::kDrop) {
                own.drop(at.words);
            }
            below[static_cast<std::size_t>(at.parent)].take(own);
        }
    }
    return found;
}

OpTree::Counters OpTree::counters() const {
    const std::scoped_lock guard(lock_.mutex);
    Counters counted = counters_;
    counted.bytes = memory_.bytes;
    counted.allocations = memory_.allocations;
    return counted;
}

// -- integrity ----------------------------------------------------------------------------------------------

void OpTree::check_integrity() const {
    const std::scoped_lock guard(lock_.mutex);
    Counters counted;
    const auto nodes = order();
    for (const Node node : nodes) {
        const Item& at = item(node);
        counted.locks += at.own_locks;
        if (node == kRoot) {
            continue;
        }
        check_node(node);
        counted.words += at.words.size();
        counted.entries += at.entry != kNowhere ? 1U : 0U;
        ++counted.nodes;
    }
    require(counted.words == counters_.words && counted.nodes == counters_.nodes,
            "words and nodes are counted");
    require(counted.entries == counters_.entries && counted.locks == counters_.locks,
            "entries and locks are");
    require(counted.words <= counters_.max_words, "the limit holds");
    require(counted.locks == item(kRoot).locks, "every lock is known at the root");
    require(nodes.size() + free_.size() == items_.size(), "each item is in the tree or free");
    require(in_table_ == counted.nodes && 2 * in_table_ <= table_.size(), "the table holds every node");
}

void OpTree::check_node(Node node) const {
    const Item& at = item(node);
    const Item& parent = item(at.parent);
    require(at.in_use && parent.in_use, "nodes are in use");
    require(find_child(at.parent, {at.kind, at.words, at.tokens}) == node, "the table finds each child");
    require(at.start == parent.start + parent.tokens, "tokens follow each other");
    require(at.kind != OpKind::kAppend || at.tokens == at.words.size(), "an edge is its tokens");
    require(at.first_child != kNone || at.entry != kNowhere || at.own_locks != 0,
            "leaves are entries, or locked");
    require(at.used_at <= clock_ && (at.parent == kRoot || at.used_at <= parent.used_at),
            "what is above was used as lately");
    std::size_t locks = at.own_locks;
    for (Node child = at.first_child; child != kNone; child = item(child).next) {
        require(item(child).parent == node, "children know their parent");
        locks += item(child).locks;
    }
    require(locks == at.locks, "locks add up");
    if (at.kind == OpKind::kDrop) {
        check_bounds(node);
    }
}

void OpTree::check_bounds(Node node) const {
    for (Node above = item(node).parent; above != kRoot; above = item(above).parent) {
        const Item& edge = item(above);
        for (const std::int32_t bound : item(node).words) {
            const auto place = static_cast<std::size_t>(bound);
            require(edge.kind != OpKind::kAppend || place <= edge.start || place >= edge.start + edge.tokens,
                    "edges end at the bounds of drops");
        }
    }
}

}  // namespace nexus
