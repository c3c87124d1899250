#include "core/op_tree.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "core/errors.hpp"
#include "core/l0_arena.hpp"

namespace nexus {
namespace {

constexpr std::size_t kFirstTable = 64;

// Finalizer of splitmix64: every bit of the result depends on every bit of the input.
std::uint64_t mixed(std::uint64_t value) noexcept {
    value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9ULL;
    value = (value ^ (value >> 27U)) * 0x94d049bb133111ebULL;
    return value ^ (value >> 31U);
}

// What a child is found by: the first token of an edge, all words of another node.
std::uint64_t key_of(OpKind kind, std::span<const std::int32_t> words) noexcept {
    auto key = mixed(static_cast<std::uint64_t>(kind) + 1);
    for (const std::int32_t word : kind == OpKind::kAppend ? words.first(1) : words) {
        key = mixed(key + static_cast<std::uint32_t>(word));
    }
    return key;
}

void require_program(bool holds, const char* what) {
    if (!holds) {
        throw std::invalid_argument(std::string("op tree: ") + what);
    }
}

}  // namespace

void* OpTree::Memory::do_allocate(std::size_t n_bytes, std::size_t alignment) {
    void* block = std::pmr::new_delete_resource()->allocate(n_bytes, alignment);
    bytes += n_bytes;
    ++allocations;
    return block;
}

void OpTree::Memory::do_deallocate(void* block, std::size_t n_bytes, std::size_t alignment) {
    bytes -= n_bytes;
    std::pmr::new_delete_resource()->deallocate(block, n_bytes, alignment);
}

OpTree::OpTree(std::size_t max_words) {
    items_.emplace_back(&memory_);
    table_.assign(kFirstTable, kNone);
    require_program(max_words > 0, "max_words must be positive");
    items_[0].in_use = true;
    counters_.max_words = max_words;
}

OpTree::Node OpTree::checked(Node node) const {
    if (node < 0 || static_cast<std::size_t>(node) >= items_.size() || !item(node).in_use) {
        throw std::out_of_range("op tree: there is no node " + std::to_string(node));
    }
    return node;
}

bool OpTree::has_tokens(const Item& node) const noexcept {
    return node.kind == OpKind::kAppend || node.kind == OpKind::kSplice;
}

// -- the table of children ----------------------------------------------------------------------------------

std::size_t OpTree::home(Node parent, std::uint64_t key) const noexcept {
    const auto bits = mixed(key ^ (static_cast<std::uint64_t>(parent) * 0x9e3779b97f4a7c15ULL));
    return static_cast<std::size_t>(bits) & (table_.size() - 1);
}

bool OpTree::begins(const Item& child, const OpWords& op) const noexcept {
    if (child.kind != op.kind) {
        return false;
    }
    return op.kind == OpKind::kAppend ? child.words.front() == op.payload.front()
                                      : std::ranges::equal(child.words, op.payload);
}

OpTree::Node OpTree::find_child(Node parent, const OpWords& op) const noexcept {
    const auto key = key_of(op.kind, op.payload);
    for (auto slot = home(parent, key); table_[slot] != kNone; slot = (slot + 1) & (table_.size() - 1)) {
        const Item& child = item(table_[slot]);
        if (child.parent == parent && child.key == key && begins(child, op)) {
            return table_[slot];
        }
    }
    return kNone;
}

void OpTree::reserve_table() {
    if (2 * (in_table_ + 1) <= table_.size()) {
        return;
    }
    std::pmr::vector<Node> old(2 * table_.size(), kNone, &memory_);
    old.swap(table_);
    in_table_ = 0;
    for (const Node node : old) {
        if (node != kNone) {
            enter(node);
        }
    }
}

void OpTree::enter(Node node) {
    reserve_table();
    auto slot = home(item(node).parent, item(node).key);
    while (table_[slot] != kNone) {
        slot = (slot + 1) & (table_.size() - 1);
    }
    table_[slot] = node;
    ++in_table_;
}

void OpTree::leave(Node node) {
    const auto mask = table_.size() - 1;
    auto hole = home(item(node).parent, item(node).key);
    while (table_[hole] != node) {
        hole = (hole + 1) & mask;
    }
    // What follows in the same cluster moves back, unless it would get before its home.
    for (auto slot = (hole + 1) & mask; table_[slot] != kNone; slot = (slot + 1) & mask) {
        const auto wanted = home(item(table_[slot]).parent, item(table_[slot]).key);
        if (((slot - wanted) & mask) >= ((slot - hole) & mask)) {
            table_[hole] = table_[slot];
            hole = slot;
        }
    }
    table_[hole] = kNone;
    --in_table_;
}

// -- the structure ------------------------------------------------------------------------------------------

void OpTree::link(Node node) {
    Item& child = item(node);
    Item& parent = item(child.parent);
    child.previous = kNone;
    child.next = parent.first_child;
    if (child.next != kNone) {
        item(child.next).previous = node;
    }
    parent.first_child = node;
    enter(node);
}

void OpTree::unlink(Node node) {
    leave(node);
    const Item& child = item(node);
    if (child.next != kNone) {
        item(child.next).previous = child.previous;
    }
    if (child.previous != kNone) {
        item(child.previous).next = child.next;
    } else {
        item(child.parent).first_child = child.next;
    }
}

OpTree::Node OpTree::add(Node parent, const OpWords& op) {
    Item made(&memory_);
    made.words.assign(op.payload.begin(), op.payload.end());
    made.key = key_of(op.kind, op.payload);
    made.start = item(parent).start + item(parent).tokens;
    made.tokens = op.n_tokens;
    made.parent = parent;
    made.kind = op.kind;
    made.in_use = true;
    counters_.words += made.words.size();
    ++counters_.nodes;
    Node node = static_cast<Node>(items_.size());
    if (free_.empty()) {
        items_.push_back(std::move(made));
    } else {
        node = free_.back();
        free_.pop_back();
        item(node) = std::move(made);
    }
    link(node);
    return node;
}

// Cuts an edge after `at` tokens; the lower part keeps the number, the upper one is returned.
OpTree::Node OpTree::split(Node node, std::size_t at) {
    unlink(node);
    const auto words = std::move(item(node).words);
    const std::span<const std::int32_t> whole(words);
    counters_.words -= words.size();
    const Node upper = add(item(node).parent, {OpKind::kAppend, whole.first(at), at});
    Item& lower = item(node);
    const auto rest = whole.subspan(at);
    lower.words.assign(rest.begin(), rest.end());
    lower.key = key_of(OpKind::kAppend, rest);
    lower.start += at;
    lower.tokens -= at;
    lower.parent = upper;
    item(upper).locks = lower.locks;
    item(upper).used_at = lower.used_at;
    counters_.words += lower.words.size();
    ++counters_.splits;
    link(node);
    return upper;
}

void OpTree::split_above(Node node, std::size_t bound) {
    while (node != kRoot && item(node).start >= bound) {
        node = item(node).parent;
    }
    const Item& edge = item(node);
    if (node != kRoot && edge.kind == OpKind::kAppend && bound < edge.start + edge.tokens) {
        split(node, bound - edge.start);
    }
}

void OpTree::prune(Node node) {
    while (node != kRoot) {
        const Item& leaf = item(node);
        if (leaf.first_child != kNone || leaf.entry != kNowhere || leaf.own_locks != 0) {
            return;
        }
        const Node parent = leaf.parent;
        erase(node);
        node = parent;
    }
}

void OpTree::erase(Node node) {
    unlink(node);
    counters_.words -= item(node).words.size();
    --counters_.nodes;
    item(node) = Item(&memory_);
    free_.push_back(node);
}

// -- programs -----------------------------------------------------------------------------------------------

void OpTree::walk_edges(Match& found, std::span<const std::int32_t> tokens) const noexcept {
    while (found.op_tokens < tokens.size()) {
        const auto rest = tokens.subspan(found.op_tokens);
        const Node child = find_child(found.node, {OpKind::kAppend, rest, rest.size()});
        if (child == kNone) {
            return;
        }
        const std::size_t common = common_prefix(item(child).words, rest);
        found.node = child;
        found.inside = common;
        found.op_tokens += common;
        found.tokens += common;
        if (common < item(child).words.size()) {
            return;
        }
        found.entry = item(child).entry != kNowhere ? child : found.entry;
    }
}

OpTree::Match OpTree::find(std::span<const std::int32_t> program) const {
    Match found;
    OpReader reader(program);
    while (!reader.done()) {
        const OpWords op = reader.next();
        if (op.kind == OpKind::kAppend) {
            walk_edges(found, op.payload);
            const bool at_a_node = found.inside == item(found.node).words.size();
            if (found.op_tokens < op.n_tokens || (!at_a_node && !reader.done())) {
                if (found.op_tokens == op.n_tokens) {
                    ++found.ops;
                    found.op_tokens = 0;
                }
                return found;
            }
            found.op_tokens = 0;
        } else {
            const Node child = find_child(found.node, op);
            if (child == kNone) {
                return found;
            }
            found.node = child;
            found.inside = item(child).words.size();
            found.tokens += op.n_tokens;
            found.entry = item(child).entry != kNowhere ? child : found.entry;
        }
        ++found.ops;
    }
    found.complete = true;
    return found;
}

void OpTree::touch(Node node) noexcept {
    const auto now = ++clock_;
    for (; node != kRoot; node = item(node).parent) {
        item(node).used_at = now;
    }
}

OpTree::Match OpTree::match(std::span<const std::int32_t> program) {
    const std::scoped_lock guard(lock_.mutex);
    const Match found = find(program);
    const bool whole = found.node == kRoot || found.inside == item(found.node).words.size();
    touch(whole ? found.node : item(found.node).parent);
    ++counters_.matches;
    counters_.complete_matches += found.complete ? 1U : 0U;
    counters_.matched_tokens += found.tokens;
    return found;
}

// Also checks the whole program before anything is changed.
std::size_t OpTree::words_lacking(std::span<const std::int32_t> program, const Match& found) const {
    std::size_t lacking = 0;
    std::size_t number = 0;
    for (OpReader reader(program); !reader.done(); ++number) {
        const std::size_t words = reader.next().payload.size();
        lacking += number < found.ops ? 0 : words - (number == found.ops ? found.op_tokens : 0);
    }
    return lacking;
}

OpTree::Node OpTree::extend(Node node, const OpWords& op) {
    if (op.kind != OpKind::kAppend) {
        const Node child = find_child(node, op);
        if (child != kNone) {
            return child;
        }
        if (op.kind == OpKind::kDrop) {
            for (const std::int32_t bound : op.payload) {
                split_above(node, static_cast<std::size_t>(bound));
            }
        }
        return add(node, op);
    }
    Match found;
    found.node = node;
    found.inside = item(node).words.size();
    walk_edges(found, op.payload);
    if (found.inside < item(found.node).words.size()) {
        found.node = split(found.node, found.inside);
    }
    const auto rest = op.payload.subspan(found.op_tokens);
    return rest.empty() ? found.node : add(found.node, {OpKind::kAppend, rest, rest.size()});
}

OpTree::Node OpTree::insert(std::span<const std::int32_t> program, Tier tier) {
    require_program(tier == kLive || tier == kHost || tier == kDisk, "an entry is in one tier at a time");
    require_program(!program.empty(), "the empty program needs no entry");
    const std::scoped_lock guard(lock_.mutex);
    const std::size_t lacking = words_lacking(program, find(program));
    if (lacking > counters_.max_words - counters_.words) {
        throw ArenaFull("op tree: " + std::to_string(lacking) + " words wanted, " +
                        std::to_string(counters_.max_words - counters_.words) + " free");
    }
    Node node = kRoot;
    for (OpReader reader(program); !reader.done();) {
        node = extend(node, reader.next());
    }
    counters_.entries += item(node).entry == kNowhere ? 1U : 0U;
    item(node).entry |= static_cast<std::uint8_t>(tier);
    ++counters_.inserts;
    touch(node);
    return node;
}

void OpTree::remove(Node entry, Tier tier) {
    const std::scoped_lock guard(lock_.mutex);
    Item& held = item(checked(entry));
    require_program((held.entry & tier) != 0, "the entry is not in that tier");
    const auto left = static_cast<std::uint8_t>(held.entry & ~tier);
    require_program(left != kNowhere || held.own_locks == 0, "the entry is locked");
    held.entry = left;
    ++counters_.removes;
    if (left == kNowhere) {
        --counters_.entries;
        prune(entry);
    }
}

void OpTree::lock(Node node) {
    const std::scoped_lock guard(lock_.mutex);
    ++item(checked(node)).own_locks;
    for (; node != kNone; node = item(node).parent) {
        ++item(node).locks;
    }
    ++counters_.locks;
}

void OpTree::unlock(Node node) {
    const std::scoped_lock guard(lock_.mutex);
    require_program(item(checked(node)).own_locks != 0, "the node is not locked");
    --item(node).own_locks;
    for (Node above = node; above != kNone; above = item(above).parent) {
        --item(above).locks;
    }
    --counters_.locks;
    prune(node);
}

OpTree::Node OpTree::evict() {
    const std::scoped_lock guard(lock_.mutex);
    Node oldest = kNone;
    for (std::size_t i = 1; i < items_.size(); ++i) {
        const Item& leaf = items_[i];
        const bool free = leaf.in_use && leaf.first_child == kNone && leaf.locks == 0;
        if (free && (oldest == kNone || leaf.used_at < item(oldest).used_at)) {
            oldest = static_cast<Node>(i);
        }
    }
    if (oldest != kNone) {
        item(oldest).entry = kNowhere;
        --counters_.entries;
        ++counters_.evictions;
        prune(oldest);
    }
    return oldest;
}

}  // namespace nexus
