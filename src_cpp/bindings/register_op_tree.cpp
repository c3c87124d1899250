#include <pybind11/stl.h>

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "core/op_tree.hpp"

namespace nexus::bindings {
namespace {

using CounterMap = std::map<std::string, std::uint64_t>;
using Words = ExactArray<std::int32_t>;

CounterMap counters_of(const OpTree& tree) {
    const auto counters = tree.counters();
    return {
        {"bytes", counters.bytes},
        {"allocations", counters.allocations},
        {"max_words", counters.max_words},
        {"words", counters.words},
        {"nodes", counters.nodes},
        {"entries", counters.entries},
        {"locks", counters.locks},
        {"matches", counters.matches},
        {"complete_matches", counters.complete_matches},
        {"matched_tokens", counters.matched_tokens},
        {"inserts", counters.inserts},
        {"removes", counters.removes},
        {"splits", counters.splits},
        {"evictions", counters.evictions},
    };
}

// int64 [nodes, 10]: what a table of named columns is made of in Python.
Array<std::int64_t> survey_of(const OpTree& tree) {
    std::vector<OpTree::Info> found;
    {
        const py::gil_scoped_release release;
        found = tree.survey();
    }
    constexpr py::ssize_t kColumns = 10;
    Array<std::int64_t> table({static_cast<py::ssize_t>(found.size()), kColumns});
    std::int64_t* cell = table.mutable_data();
    for (const OpTree::Info& info : found) {
        *cell++ = info.node;
        *cell++ = info.parent;
        *cell++ = info.kind ? static_cast<std::int64_t>(*info.kind) : -1;
        *cell++ = static_cast<std::int64_t>(info.start);
        *cell++ = static_cast<std::int64_t>(info.tokens);
        *cell++ = static_cast<std::int64_t>(info.dropped);
        *cell++ = static_cast<std::int64_t>(info.locks);
        *cell++ = info.entry;
        *cell++ = info.tiers;
        *cell++ = static_cast<std::int64_t>(info.used_at);
    }
    return table;
}

OpTree::Tier tier_of(std::uint8_t tier) {
    if (tier != OpTree::kLive && tier != OpTree::kHost && tier != OpTree::kDisk) {
        throw std::invalid_argument("a tier is 1 (live), 2 (host) or 4 (disk)");
    }
    return static_cast<OpTree::Tier>(tier);
}

}  // namespace

void register_op_tree(py::module_& module) {
    py::class_<OpTree>(module, "OpTree",
                       R"(Cache programs as a radix tree that shares their common beginnings.

Programs are int32 words in canonical form; a node's number stays while it is an entry. Tiers are bits: 1 live,
2 host, 4 disk. Any thread may call.)")
        .def(py::init<std::size_t>(), py::arg("max_words"))
        .def(
            "match",
            [](OpTree& tree, const Words& words) {
                const auto found = tree.match(as_span(words, "words"));
                return std::tuple{found.node,      found.inside, found.tokens,  found.ops,
                                  found.op_tokens, found.entry,  found.complete};
            },
            py::arg("words"),
            R"(The longest beginning of the program that is in the tree, which counts as used now.

Returns (node, words of it that matched, tokens, whole operations, tokens of the append after them, deepest entry
on the way or -1, whether all of the program is in the tree).)")
        .def(
            "insert",
            [](OpTree& tree, const Words& words, std::uint8_t tier) {
                return tree.insert(as_span(words, "words"), tier_of(tier));
            },
            py::arg("words"), py::arg("tier"),
            "Make the program an entry in a tier and return its node; raises ArenaFull, and changes nothing "
            "then.")
        .def(
            "remove",
            [](OpTree& tree, OpTree::Node entry, std::uint8_t tier) { tree.remove(entry, tier_of(tier)); },
            py::arg("entry"), py::arg("tier"), "Take an entry out of a tier; what only led to it goes.")
        .def("lock", &OpTree::lock, py::arg("node"), "Keep a node and everything above it.")
        .def("unlock", &OpTree::unlock, py::arg("node"))
        .def("evict", &OpTree::evict,
             "Forget the longest unlocked program that was used longest ago; returns its former node, or -1.")
        .def("source", &OpTree::source, py::arg("node"), py::arg("tiers"),
             "An entry in one of the tiers that only appends and splices behind the node, or -1.")
        .def(
            "program",
            [](const OpTree& tree, OpTree::Node node) { return copy_of<std::int32_t>(tree.program(node)); },
            py::arg("node"), "Words of the program that ends at a node, int32.")
        .def("path", &OpTree::path, py::arg("node"), "Nodes from below the root to this one.")
        .def("survey", &survey_of,
             R"(int64 [nodes, 10], parents before children.

Columns: node, parent, kind (-1 for the root), first token, tokens, tokens that every longest program through it
has dropped, locks at or below it, tiers of the entry that ends there, tiers of the entries at or below it that
have not dropped all of its tokens, logical time of the last use.)")
        .def("counters", &counters_of)
        .def("check_integrity", &OpTree::check_integrity,
             "Raise RuntimeError when the structure contradicts itself.");
}

}  // namespace nexus::bindings
