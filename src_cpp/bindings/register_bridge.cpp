#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/register.hpp"
#include "llama_bridge/eval_bridge.hpp"

namespace py = pybind11;

namespace nexus::bindings {
namespace {

using bridge::EvalBridge;
template <typename Element>
using Array = py::array_t<Element, py::array::c_style>;

// Addresses of library functions; remembers the first that is missing.
class Addresses {
  public:
    explicit Addresses(const py::dict& addresses) : addresses_(addresses) {}

    template <typename Function>
    void look_up(const char* name, Function& target) {
        const auto address = addresses_.contains(name) ? addresses_[name].cast<std::uintptr_t>() : 0;
        if (address == 0 && missing_.empty()) {
            missing_ = std::string("no function ") + name;
        }
        // NOLINTNEXTLINE(performance-no-int-to-ptr): the loaded library gives its functions as addresses
        target = reinterpret_cast<Function>(address);
    }

    const std::string& missing() const { return missing_; }

  private:
    const py::dict& addresses_;
    std::string missing_;
};

bridge::Library library_from(Addresses& addresses) {
    bridge::Library library;
    addresses.look_up("ggml_get_name", library.get_name);
    addresses.look_up("ggml_set_name", library.set_name);
    addresses.look_up("ggml_nelements", library.count_elements);
    addresses.look_up("ggml_nrows", library.count_rows);
    addresses.look_up("ggml_nbytes", library.count_bytes);
    addresses.look_up("ggml_get_data", library.get_data);
    addresses.look_up("ggml_type_size", library.type_size);
    addresses.look_up("ggml_element_size", library.element_size);
    addresses.look_up("ggml_tensor_overhead", library.tensor_overhead);
    addresses.look_up("ggml_init", library.init);
    addresses.look_up("ggml_free", library.free);
    addresses.look_up("ggml_new_tensor_4d", library.new_tensor_4d);
    addresses.look_up("ggml_view_1d", library.view_1d);
    addresses.look_up("ggml_add", library.add);
    addresses.look_up("ggml_backend_buffer_is_host", library.buffer_is_host);
    addresses.look_up("ggml_backend_buffer_get_base", library.buffer_get_base);
    addresses.look_up("ggml_backend_buffer_get_size", library.buffer_get_size);
    addresses.look_up("ggml_backend_buffer_free", library.buffer_free);
    addresses.look_up("ggml_backend_cpu_buffer_type", library.cpu_buffer_type);
    addresses.look_up("ggml_backend_alloc_ctx_tensors_from_buft", library.alloc_ctx_tensors);
    addresses.look_up("ggml_backend_tensor_get", library.tensor_get);
    return library;
}

template <typename Element>
std::vector<Element> copy_of(const std::optional<Array<Element>>& array) {
    return array ? std::vector<Element>(array->data(), array->data() + array->size())
                 : std::vector<Element>();
}

std::vector<bridge::PositionRange> ranges_from(const std::optional<Array<std::int32_t>>& array) {
    std::vector<bridge::PositionRange> ranges;
    if (!array) {
        return ranges;
    }
    if (array->ndim() != 2 || array->shape(1) != 2) {
        throw std::invalid_argument("hidden: expected shape [n, 2]");
    }
    const auto view = array->unchecked<2>();
    ranges.reserve(static_cast<std::size_t>(view.shape(0)));
    for (py::ssize_t row = 0; row < view.shape(0); ++row) {
        ranges.push_back({view(row, 0), view(row, 1)});
    }
    return ranges;
}

void set_capture(bridge::Plan& plan, const std::optional<Array<float>>& buffer) {
    if (!buffer) {
        return;
    }
    if (buffer->ndim() != 4) {
        throw std::invalid_argument("capture_buffer: expected shape [layer, head, query, cell]");
    }
    if (buffer->shape(0) != static_cast<py::ssize_t>(plan.capture_layers.size()) ||
        buffer->shape(2) != plan.capture_last - plan.capture_first) {
        throw std::invalid_argument("capture_buffer: expected one slice per layer and query");
    }
    plan.capture_heads = static_cast<std::int32_t>(buffer->shape(1));
    plan.capture_cells = static_cast<std::int32_t>(buffer->shape(3));
    auto view = *buffer;
    plan.capture_buffer = std::span<float>(view.mutable_data(), static_cast<std::size_t>(view.size()));
}

template <typename Element>
Array<Element> to_numpy(const std::vector<Element>& values) {
    return Array<Element>(static_cast<py::ssize_t>(values.size()), values.data());
}

// The Python face keeps the capture buffer alive while a plan that writes into it is armed.
class PyEvalBridge {
  public:
    explicit PyEvalBridge(const py::dict& addresses) : PyEvalBridge(Addresses(addresses)) {}

    void arm(std::int32_t n_tokens, std::int32_t first_position,
             const std::optional<Array<std::int32_t>>& positions,
             const std::optional<Array<std::int32_t>>& cell_positions,
             const std::optional<Array<std::int64_t>>& hidden_offsets,
             const std::optional<Array<std::int32_t>>& hidden, bool map_cells, bool in_place,
             std::vector<std::int32_t> capture_layers, std::pair<std::int32_t, std::int32_t> capture_queries,
             const std::optional<Array<float>>& capture_buffer) {
        bridge::Plan plan;
        plan.n_tokens = n_tokens;
        plan.first_position = first_position;
        plan.positions = copy_of(positions);
        plan.cell_positions = copy_of(cell_positions);
        plan.hidden_offsets = copy_of(hidden_offsets);
        plan.hidden = ranges_from(hidden);
        plan.map_cells = map_cells;
        plan.in_place = in_place;
        plan.capture_layers = std::move(capture_layers);
        std::tie(plan.capture_first, plan.capture_last) = capture_queries;
        set_capture(plan, capture_buffer);
        bridge_.arm(std::move(plan));
        buffer_ = capture_buffer;
    }

    py::dict disarm() {
        const auto report = bridge_.disarm();
        buffer_.reset();
        py::dict result;
        result["problem"] = report.problem;
        result["graphs"] = report.graphs;
        result["n_kv"] = report.n_kv;
        result["destination_cells"] = to_numpy(report.destination_cells);
        result["earlier_cells"] = to_numpy(report.earlier_cells);
        result["rewritten_cells"] = to_numpy(report.rewritten_cells);
        result["captured_layers"] = report.captured_layers;
        return result;
    }

    EvalBridge& native() { return bridge_; }

  private:
    explicit PyEvalBridge(Addresses addresses) : PyEvalBridge(library_from(addresses), addresses) {}
    PyEvalBridge(const bridge::Library& library, const Addresses& addresses)
        : bridge_(library, addresses.missing()) {}

    EvalBridge bridge_;
    std::optional<Array<float>> buffer_;
};

template <typename Function>
std::uintptr_t address_of(Function function) {
    return reinterpret_cast<std::uintptr_t>(function);
}

}  // namespace

void register_bridge(py::module_& module) {
    py::class_<PyEvalBridge>(
        module, "EvalBridge",
        "Native evaluation and abort callbacks of one llama.cpp context.\n\n"
        "`addresses` maps names of public ggml functions to their addresses in the loaded "
        "library.\nWithout some of them patches and captures are unavailable: see layout_problem.")
        .def(py::init<const py::dict&>(), py::arg("addresses"))
        .def_property_readonly(
            "eval_callback", [](const PyEvalBridge&) { return address_of(&EvalBridge::on_node); },
            "Address for cb_eval.")
        .def_property_readonly(
            "abort_callback", [](const PyEvalBridge&) { return address_of(&EvalBridge::on_abort); },
            "Address for abort_callback.")
        .def_property_readonly(
            "user_data", [](PyEvalBridge& self) { return address_of(&self.native()); },
            "User data of both callbacks; valid while this object lives.")
        .def_property_readonly(
            "layout_problem", [](PyEvalBridge& self) { return self.native().layout_problem(); },
            "First difference between the tensor mirror and the library; empty when they agree.")
        .def_property_readonly(
            "first_graph_checked", [](PyEvalBridge& self) { return self.native().first_graph_checked(); },
            "Whether a whole live graph has been compared.")
        .def_property_readonly("abort_requested",
                               [](PyEvalBridge& self) { return self.native().abort_requested(); })
        .def(
            "request_abort", [](PyEvalBridge& self) { self.native().request_abort(); },
            "Stop the running decode at its next graph node. Any thread.")
        .def("clear_abort", [](PyEvalBridge& self) { self.native().clear_abort(); })
        .def(
            "arm", &PyEvalBridge::arm, py::arg("n_tokens"), py::kw_only(), py::arg("first_position") = 0,
            py::arg("positions") = py::none(), py::arg("cell_positions") = py::none(),
            py::arg("hidden_offsets") = py::none(), py::arg("hidden") = py::none(),
            py::arg("map_cells") = false, py::arg("in_place") = false,
            py::arg("capture_layers") = std::vector<std::int32_t>(),
            py::arg("capture_queries") = std::pair<std::int32_t, std::int32_t>(0, 0),
            py::arg("capture_buffer") = py::none(),
            "Set what the next decode call, of `n_tokens` tokens in one graph, has patched and read back.\n\n"
            "positions: int32 [n_tokens], RoPE positions. cell_positions: int32, positions of the sequence's "
            "cells\n"
            "in ascending cell order. hidden_offsets: int64 [n_tokens + 1] into hidden: int32 [n, 2], "
            "half-open\n"
            "ranges of cell positions that a query must not see. in_place: write over the rows that the "
            "sequence holds\n"
            "at `positions`, each query seeing what stands there or before. capture_buffer: float32 [layer, "
            "head, "
            "query, cell].\n"
            "Raises ValueError when the plan contradicts itself, RuntimeError when one is armed.")
        .def("disarm", &PyEvalBridge::disarm,
             "End the plan and return what happened: problem, graphs, n_kv, destination_cells, "
             "earlier_cells,\n"
             "rewritten_cells, captured_layers.");
}

}  // namespace nexus::bindings
