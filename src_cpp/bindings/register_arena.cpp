#include <pybind11/stl.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "core/buddy_arena.hpp"
#include "core/l0_arena.hpp"

namespace nexus::bindings {
namespace {

using CounterMap = std::map<std::string, std::uint64_t>;

// Owns one block; gives it back when Python drops the last reference, which views and memoryviews hold too.
class ArenaBuffer {
  public:
    ArenaBuffer(std::shared_ptr<BuddyArena> arena, std::size_t n_bytes)
        : arena_(std::move(arena)), bytes_(arena_->allocate(n_bytes)) {}
    ~ArenaBuffer() { arena_->release(bytes_.data()); }
    ArenaBuffer(const ArenaBuffer&) = delete;
    ArenaBuffer& operator=(const ArenaBuffer&) = delete;
    ArenaBuffer(ArenaBuffer&&) = delete;
    ArenaBuffer& operator=(ArenaBuffer&&) = delete;

    [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

  private:
    std::shared_ptr<BuddyArena> arena_;
    std::span<std::byte> bytes_;
};

CounterMap buddy_counters(const BuddyArena& arena) {
    const auto counters = arena.counters();
    return {
        {"capacity_bytes", counters.capacity_bytes},
        {"used_bytes", counters.used_bytes},
        {"requested_bytes", counters.requested_bytes},
        {"peak_used_bytes", counters.peak_used_bytes},
        {"largest_free_bytes", counters.largest_free_bytes},
        {"live", counters.live},
        {"allocations", counters.allocations},
        {"releases", counters.releases},
        {"refusals", counters.refusals},
        {"splits", counters.splits},
        {"merges", counters.merges},
    };
}

CounterMap l0_counters(const L0Arena& arena) {
    const auto counters = arena.counters();
    return {
        {"n_slots", counters.n_slots},     {"live", counters.live},
        {"pinned", counters.pinned},       {"hits", counters.hits},
        {"misses", counters.misses},       {"matched_tokens", counters.matched_tokens},
        {"binds", counters.binds},         {"releases", counters.releases},
        {"evictions", counters.evictions}, {"growths", counters.growths},
    };
}

void register_buddy(py::module_& module) {
    py::class_<ArenaBuffer>(
        module, "ArenaBuffer", py::buffer_protocol(),
        "A block of a BuddyArena, writable through the buffer protocol; freed when dropped.")
        .def_buffer([](ArenaBuffer& buffer) {
            const auto bytes = buffer.bytes();
            return py::buffer_info(reinterpret_cast<std::uint8_t*>(bytes.data()),
                                   static_cast<py::ssize_t>(bytes.size()));
        })
        .def("__len__", [](const ArenaBuffer& buffer) { return buffer.bytes().size(); });
    py::class_<BuddyArena, std::shared_ptr<BuddyArena>>(
        module, "BuddyArena", "A region handed out in power-of-two blocks. Any thread may call.")
        .def(py::init<std::size_t, std::size_t>(), py::arg("capacity_bytes"), py::arg("min_block") = 4096)
        .def(
            "allocate",
            [](std::shared_ptr<BuddyArena> arena, std::size_t n_bytes) {
                return std::make_unique<ArenaBuffer>(std::move(arena), n_bytes);
            },
            py::arg("n_bytes"), "A block of n_bytes, not cleared; raises ArenaFull.")
        .def("counters", &buddy_counters)
        .def("check_integrity", &BuddyArena::check_integrity,
             "Raise RuntimeError when the bookkeeping contradicts itself.");
}

using Tokens = Array<std::int32_t>;

void register_l0(py::module_& module) {
    py::class_<L0Arena>(module, "L0Arena",
                        "A fixed pool of sequence slots, matched by longest common prefix of exact tokens.")
        .def(py::init<std::size_t, std::size_t>(), py::arg("n_slots") = 32, py::kw_only(),
             py::arg("reserved_tokens") = 4096)
        .def(
            "match",
            [](L0Arena& arena, const Tokens& tokens) {
                const auto found = arena.match(as_span(tokens, "tokens"));
                return std::pair{found.slot, found.length};
            },
            py::arg("tokens").noconvert(),
            "(slot, number of shared tokens), or (-1, 0); the slot counts as used now.")
        .def(
            "bind",
            [](L0Arena& arena, std::optional<int> slot, const Tokens& tokens) {
                return arena.bind(slot, as_span(tokens, "tokens")).slot;
            },
            py::arg("slot"), py::arg("tokens").noconvert(),
            R"(Say what a slot holds, and return the slot.

With slot None an empty one is taken, or the least recently used one that is not pinned is evicted; raises
ArenaFull when all are pinned.)")
        .def("pin", &L0Arena::pin, py::arg("slot"))
        .def("unpin", &L0Arena::unpin, py::arg("slot"))
        .def("release", &L0Arena::release, py::arg("slot"), "Empty a slot; ValueError while it is pinned.")
        .def(
            "tokens",
            [](const L0Arena& arena, int slot) { return copy_of<std::int32_t>(arena.tokens(slot)); },
            py::arg("slot"), "What a slot holds, int32.")
        .def("counters", &l0_counters)
        .def("check_integrity", &L0Arena::check_integrity,
             "Raise RuntimeError when the bookkeeping contradicts itself.");
}

}  // namespace

void register_arena(py::module_& module) {
    register_buddy(module);
    register_l0(module);
}

}  // namespace nexus::bindings
