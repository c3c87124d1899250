// The op tree against a plain list of programs, then under several threads, and its hits against a counting
// allocator. The argument is a number of random operations; as a test it does some thousands of them.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/errors.hpp"
#include "core/op_tree.hpp"
#include "tests/check.hpp"
#include "tests/count_allocations.hpp"

using nexus::ArenaFull;
using nexus::OpKind;
using nexus::OpTree;
using nexus::testing::throws;
using Words = std::vector<std::int32_t>;

namespace {

struct Op {
    OpKind kind = OpKind::kRepos;
    Words payload;
    std::size_t n_tokens = 0;
    bool operator==(const Op&) const = default;
};
using Program = std::vector<Op>;

Op append(Words tokens) {
    const auto n = tokens.size();
    return {OpKind::kAppend, std::move(tokens), n};
}

Op splice(std::int32_t anchor, const Words& tokens) {
    Words payload{anchor, 3, 'a' | ('b' << 8) | ('c' << 16)};
    payload.insert(payload.end(), tokens.begin(), tokens.end());
    return {OpKind::kSplice, payload, tokens.size()};
}

Op drop(Words bounds) { return {OpKind::kDrop, std::move(bounds), 0}; }

Words words_of(const Program& program) {
    Words words;
    for (const Op& op : program) {
        words.push_back(static_cast<std::int32_t>(op.kind));
        words.push_back(static_cast<std::int32_t>(op.payload.size()));
        words.insert(words.end(), op.payload.begin(), op.payload.end());
    }
    return words;
}

std::size_t n_tokens(const Program& program) {
    std::size_t n = 0;
    for (const Op& op : program) {
        n += op.n_tokens;
    }
    return n;
}

// What an op tree should say, from a list of programs and without regard to speed.
struct Shared {
    std::size_t ops = 0;
    std::size_t op_tokens = 0;
    std::size_t tokens = 0;
    bool all = false;     // the request is a beginning of the program
    bool prefix = false;  // the program is a beginning of the request
};

std::size_t naive_prefix(const Words& left, const Words& right) {
    std::size_t n = 0;
    while (n < left.size() && n < right.size() && left[n] == right[n]) {
        ++n;
    }
    return n;
}

Shared shared(const Program& held, const Program& wanted) {
    Shared found;
    for (std::size_t i = 0; i < held.size() && i < wanted.size(); ++i) {
        const bool edges = held[i].kind == OpKind::kAppend && wanted[i].kind == OpKind::kAppend;
        if (!edges && held[i] != wanted[i]) {
            return found;
        }
        const std::size_t n = edges ? naive_prefix(held[i].payload, wanted[i].payload) : wanted[i].n_tokens;
        found.tokens += n;
        if (n < wanted[i].n_tokens) {
            found.op_tokens = n;
            found.prefix = n == held[i].n_tokens && i + 1 == held.size();
            return found;
        }
        ++found.ops;
        if (n < held[i].n_tokens) {
            found.all = i + 1 == wanted.size();
            return found;
        }
    }
    found.all = found.ops == wanted.size();
    found.prefix = found.ops == held.size();
    return found;
}

struct Model {
    struct Entry {
        Program program;
        OpTree::Node node = OpTree::kNone;
        std::uint8_t tiers = 0;
        int locks = 0;
        int used_at = 0;
    };
    std::map<Words, Entry> entries;
    int clock = 0;

    Shared best(const Program& wanted) const {
        Shared best;
        for (const auto& [words, entry] : entries) {
            const Shared found = shared(entry.program, wanted);
            if (std::tie(found.ops, found.op_tokens) > std::tie(best.ops, best.op_tokens) || found.all) {
                best = found;
            }
        }
        return best;
    }
    void touch(const Program& wanted) {
        ++clock;
        for (auto& [words, entry] : entries) {
            entry.used_at = shared(entry.program, wanted).prefix ? clock : entry.used_at;
        }
    }
    OpTree::Node deepest(const Program& wanted) const {
        OpTree::Node node = OpTree::kNone;
        std::size_t length = 0;
        for (const auto& [words, entry] : entries) {
            if (shared(entry.program, wanted).prefix && words.size() > length) {
                node = entry.node;
                length = words.size();
            }
        }
        return node;
    }
    bool continued(const Entry& one) const {
        return std::any_of(entries.begin(), entries.end(), [&one](const auto& other) {
            return other.second.node != one.node && shared(one.program, other.second.program).prefix;
        });
    }
    OpTree::Node oldest() const {
        const Entry* found = nullptr;
        for (const auto& [words, entry] : entries) {
            const bool older = found == nullptr || entry.used_at < found->used_at;
            if (entry.locks == 0 && older && !below_is_locked(entry) && !continued(entry)) {
                found = &entry;
            }
        }
        return found == nullptr ? OpTree::kNone : found->node;
    }
    bool below_is_locked(const Entry& one) const {
        return std::any_of(entries.begin(), entries.end(), [&one](const auto& other) {
            return other.second.locks > 0 && shared(one.program, other.second.program).prefix;
        });
    }
};

Words random_tokens(std::mt19937& random) {
    Words tokens(1 + random() % 6);
    for (std::int32_t& token : tokens) {
        token = static_cast<std::int32_t>(random() % 5 == 0);
    }
    return tokens;
}

Op random_op(std::mt19937& random, std::size_t tokens, bool after_append) {
    const auto place = [&] { return static_cast<std::int32_t>(random() % tokens); };
    switch (tokens == 0 ? 0 : random() % 7) {
        case 0:
        case 1:
            return after_append ? Op{} : append(random_tokens(random));
        case 2:
            return splice(static_cast<std::int32_t>(random() % 2), random_tokens(random));
        case 3:
            return {OpKind::kRepair, {place()}, 0};
        case 4: {
            const auto start = place();
            return drop({start, start + 1});
        }
        case 5: {
            const auto start = static_cast<std::int32_t>(random() % 2);
            return tokens < 6 ? Op{} : drop({start, start + 1, start + 3, start + 4});
        }
        default:
            return {};
    }
}

// Some beginning of a known program, with a tail of its own.
Program random_program(std::mt19937& random, const Program& known) {
    Program program(known.begin(),
                    known.begin() + static_cast<std::ptrdiff_t>(random() % (known.size() + 1)));
    if (!program.empty() && program.back().kind == OpKind::kAppend) {
        Words& tokens = program.back().payload;
        tokens.resize(1 + random() % tokens.size());
        program.back() = append(tokens);
    }
    for (std::size_t i = random() % 4; i > 0; --i) {
        const bool after_append = !program.empty() && program.back().kind == OpKind::kAppend;
        program.push_back(random_op(random, n_tokens(program), after_append));
    }
    return program.empty() ? Program{append({0})} : program;
}

class Walk {
  public:
    explicit Walk(std::uint32_t seed) : random_(seed), tree_(kWords) {}

    void step() {
        const Program program = random_program(random_, any_program());
        switch (random_() % 8) {
            case 0:
            case 1:
                return match(program);
            case 2:
            case 3:
                return insert(program);
            case 4:
                return remove();
            case 5:
                return toggle_lock();
            case 6:
                return model_.entries.size() > 24 ? evict() : match(program);
            default:
                return look();
        }
    }
    void finish() {
        for (auto& [words, entry] : model_.entries) {
            for (; entry.locks > 0; --entry.locks) {
                tree_.unlock(entry.node);
            }
        }
        while (tree_.evict() != OpTree::kNone) {
        }
        tree_.check_integrity();
        const auto counters = tree_.counters();
        CHECK(counters.nodes == 0 && counters.words == 0 && counters.entries == 0 && counters.locks == 0);
    }
    void check() const {
        tree_.check_integrity();
        CHECK(tree_.counters().entries == model_.entries.size());
        CHECK(tree_.counters().words <= kWords);
    }

  private:
    static constexpr std::size_t kWords = 600;

    Program any_program() {
        if (model_.entries.empty()) {
            return {};
        }
        return std::next(model_.entries.begin(), offset())->second.program;
    }
    std::ptrdiff_t offset() { return static_cast<std::ptrdiff_t>(random_() % model_.entries.size()); }
    Model::Entry& any_entry() { return std::next(model_.entries.begin(), offset())->second; }

    void match(const Program& program) {
        const auto found = tree_.match(words_of(program));
        const Shared wanted = model_.best(program);
        CHECK(found.ops == wanted.ops && found.op_tokens == wanted.op_tokens &&
              found.tokens == wanted.tokens);
        CHECK(found.complete == wanted.all);
        CHECK(found.entry == model_.deepest(program));
        model_.touch(program);
    }
    void insert(const Program& program) {
        const Words words = words_of(program);
        const auto tier = static_cast<OpTree::Tier>(1U << (random_() % 3));
        const auto before = tree_.counters();
        try {
            const auto node = tree_.insert(words, tier);
            Model::Entry& entry = model_.entries[words];
            CHECK(entry.node == OpTree::kNone || entry.node == node);
            entry.program = program;
            entry.node = node;
            entry.tiers |= static_cast<std::uint8_t>(tier);
            model_.touch(program);
            CHECK(tree_.program(node) == words);
        } catch (const ArenaFull&) {
            CHECK(tree_.counters().nodes == before.nodes && tree_.counters().words == before.words);
            evict();
        }
    }
    void remove() {
        if (model_.entries.empty()) {
            return;
        }
        Model::Entry& entry = any_entry();
        const auto tier = static_cast<OpTree::Tier>(1U << (random_() % 3));
        const bool there = (entry.tiers & tier) != 0;
        if (!there || (entry.tiers == tier && entry.locks > 0)) {
            CHECK(throws<std::invalid_argument>([&] { tree_.remove(entry.node, tier); }));
            return;
        }
        tree_.remove(entry.node, tier);
        entry.tiers = static_cast<std::uint8_t>(entry.tiers & ~tier);
        forget_empty();
    }
    void toggle_lock() {
        if (model_.entries.empty()) {
            return;
        }
        Model::Entry& entry = any_entry();
        if (entry.locks > 0) {
            tree_.unlock(entry.node);
            --entry.locks;
        } else {
            tree_.lock(entry.node);
            ++entry.locks;
        }
    }
    void evict() {
        const auto wanted = model_.oldest();
        CHECK(tree_.evict() == wanted);
        for (auto& [words, entry] : model_.entries) {
            entry.tiers = entry.node == wanted ? 0 : entry.tiers;
        }
        forget_empty();
    }
    void forget_empty() {
        std::erase_if(model_.entries, [](const auto& item) { return item.second.tiers == 0; });
    }
    void look() {
        for (const auto& info : tree_.survey()) {
            CHECK(info.dropped <= info.tokens && (info.entry & ~OpTree::kTiers) == 0);
            CHECK((info.entry & ~info.tiers) == 0);  // what ends here is active at its end
        }
    }

    std::mt19937 random_;
    OpTree tree_;
    Model model_;
};

void test_against_the_model(std::size_t n_ops) {
    constexpr std::size_t kWalk = 2000;
    for (std::size_t done = 0; done < n_ops; done += kWalk) {
        Walk walk(static_cast<std::uint32_t>(done / kWalk));
        for (std::size_t i = 0; i < std::min(kWalk, n_ops - done); ++i) {
            walk.step();
            if (i % 8 == 0) {
                walk.check();
            }
        }
        walk.finish();
    }
}

void test_timing_of_drops_and_versions_lie_apart() {
    OpTree tree(1000);
    const Op first = append({1, 2, 3, 4});
    const Op second = append({5, 6});
    const auto late = tree.insert(words_of({append({1, 2, 3, 4, 5, 6}), drop({1, 3})}), OpTree::kHost);
    const auto early = tree.insert(words_of({first, drop({1, 3}), second}), OpTree::kHost);
    const auto moved = tree.insert(words_of({first, drop({1, 3}), Op{}, second}), OpTree::kLive);
    CHECK(late != early && early != moved && tree.counters().entries == 3);
    const auto found = tree.match(words_of({first, drop({1, 3}), Op{}, append({5, 9})}));
    CHECK(found.tokens == 5 && found.ops == 3 && found.op_tokens == 1 && !found.complete);
    CHECK(found.entry == OpTree::kNone);
    CHECK(tree.source(found.node, OpTree::kTiers) == moved);
    CHECK(tree.source(found.node, OpTree::kHost) == OpTree::kNone);
    for (const auto& info : tree.survey()) {
        CHECK(info.dropped == (info.start == 1 && info.tokens == 2 ? 2U : 0U));  // by all three
    }
    tree.insert(words_of({append({1, 2, 3, 4, 8})}), OpTree::kDisk);
    for (const auto& info : tree.survey()) {
        CHECK(info.dropped == 0);  // one program keeps it
        CHECK(info.start != 1 || info.tokens != 2 || info.tiers == OpTree::kDisk);
    }
    tree.check_integrity();
}

void test_a_hit_allocates_nothing() {
    OpTree tree(1U << 20U);
    Program program;
    for (std::int32_t turn = 0; turn < 20; ++turn) {
        program.push_back(append(Words(100, turn)));
        program.push_back(splice(0, {1, 2, turn}));
        program.push_back(drop({103 * turn, 103 * turn + 50}));
        tree.insert(words_of(program), OpTree::kHost);
    }
    const Words whole = words_of(program);
    program.back() = drop({1, 2});
    const Words other = words_of(program);
    const auto own = tree.counters().allocations;
    const auto before = nexus::testing::n_allocations();
    for (int round = 0; round < 100; ++round) {
        const auto found = tree.match(whole);
        CHECK(found.complete && found.tokens == 20U * 103U);
        CHECK(tree.match(other).ops == 59);
        tree.lock(found.node);
        CHECK(tree.source(found.node, OpTree::kHost) == found.entry);
        tree.unlock(found.node);
    }
    CHECK(nexus::testing::n_allocations() == before && tree.counters().allocations == own);
    tree.insert(words_of({append({9})}), OpTree::kHost);
    CHECK(tree.counters().allocations > own);  // the counter counts
}

void test_misuse_is_refused() {
    CHECK(throws<std::invalid_argument>([] { OpTree{0}; }));
    OpTree tree(8);
    for (const Words& words : {Words{}, Words{0}, Words{0, 0}, Words{0, 2, 1}, Words{9, 0}, Words{-1, 0},
                               Words{0, -1}, Words{0, 1, 5, 0, 1, 6}, Words{4, 1, 0}, Words{2, 1, 0},
                               Words{0, 2, 1, 2, 3, 2, 1, 3}, Words{0, 2, 1, 2, 3, 2, 1, 1},
                               Words{1, 2, 0, 4}, Words{1, 3, 0, 4, 7}, Words{0, 2, 1, 2, 2, 2, 1, 0}}) {
        CHECK(throws<std::invalid_argument>([&] { tree.insert(words, OpTree::kLive); }));
    }
    const Words nine = words_of({append({1, 2, 3, 4, 5, 6, 7, 8, 9})});
    CHECK(throws<ArenaFull>([&] { tree.insert(nine, OpTree::kLive); }));
    CHECK(throws<std::invalid_argument>([&] { tree.insert(words_of({append({1})}), OpTree::kNowhere); }));
    const auto node = tree.insert(words_of({append({1, 2})}), OpTree::kLive);
    CHECK(throws<std::invalid_argument>([&] { tree.remove(node, OpTree::kHost); }));
    CHECK(throws<std::invalid_argument>([&] { tree.unlock(node); }));
    CHECK(throws<std::out_of_range>([&] { tree.lock(node + 1); }));
    CHECK(throws<std::out_of_range>([&] { tree.lock(OpTree::kNone); }));
    tree.lock(node);
    CHECK(throws<std::invalid_argument>([&] { tree.remove(node, OpTree::kLive); }));
    CHECK(tree.evict() == OpTree::kNone);
    tree.unlock(node);
    tree.remove(node, OpTree::kLive);
    CHECK(tree.counters().nodes == 0);
    tree.check_integrity();
}

void work_alone(OpTree& tree, std::uint32_t seed, std::size_t n_ops) {
    std::mt19937 random(seed);
    Program program;
    for (std::size_t i = 0; i < n_ops; ++i) {
        program = random_program(random, program);
        const Words words = words_of(program);
        const auto found = tree.match(words);
        CHECK(found.tokens <= n_tokens(program));
        try {
            // Only the one thread that locked a node may take it for still there.
            tree.insert(words, OpTree::kHost);
        } catch (const ArenaFull&) {
            tree.evict();
        }
        try {
            tree.lock(found.node);
            // Another thread may have evicted it and given its number to a node of its own; what is
            // locked stays, whichever it is.
            const auto path = tree.path(found.node);
            CHECK(path.empty() || path.back() == found.node);
            tree.unlock(found.node);
        } catch (const std::out_of_range&) {  // another thread evicted it meanwhile
        }
    }
}

void test_threads(std::size_t n_ops) {
    constexpr std::size_t kThreads = 4;
    OpTree tree(2000);
    std::vector<std::thread> threads;
    std::atomic<std::size_t> done{0};
    for (std::uint32_t seed = 0; seed < kThreads; ++seed) {
        threads.emplace_back([&tree, &done, seed, n_ops] {
            work_alone(tree, seed, n_ops / kThreads);
            ++done;
        });
    }
    while (done < kThreads) {
        tree.check_integrity();
        (void)tree.survey();
        // The mutex is not fair: who takes it again at once may keep the others out for minutes.
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    tree.check_integrity();
    CHECK(tree.counters().words <= 2000 && tree.counters().locks == 0);
    while (tree.evict() != OpTree::kNone) {
    }
    CHECK(tree.counters().nodes == 0 && tree.counters().words == 0);
}

}  // namespace

int main(int argc, char** argv) {
    const std::size_t n_ops = argc > 1 ? std::stoull(argv[1]) : 20000;
    test_timing_of_drops_and_versions_lie_apart();
    test_a_hit_allocates_nothing();
    test_misuse_is_refused();
    test_against_the_model(n_ops);
    test_threads(n_ops);
    return nexus::testing::finish();
}
