#include <pybind11/stl.h>

#include <memory>
#include <optional>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "core/state_codec.hpp"

namespace nexus::bindings {
namespace {

using Rows = std::vector<Array<Half>>;

StateLayout parse(const py::buffer& buffer, int n_pos_per_embd) {
    const auto info = request_bytes(buffer, false);
    return parse_state(bytes_of(info), n_pos_per_embd);
}

void align(const py::buffer& buffer) {
    const auto info = request_bytes(buffer, true);
    const py::gil_scoped_release release;
    align_sections(writable_bytes_of(info));
}

void check_layer(const StateLayout& layout, std::size_t layer) {
    if (layer >= layout.layers.size()) {
        throw py::index_error("layer " + std::to_string(layer) + " of a state with " +
                              std::to_string(layout.layers.size()));
    }
}

// An array over the buffer's own memory, writable when the buffer is; it keeps the buffer alive.
py::array row_view(const py::buffer& buffer, const StateLayout& layout, std::size_t offset,
                   std::size_t n_embd) {
    check_matches(bytes_of(request_bytes(buffer, false)), layout);
    const py::object frombuffer = py::module_::import("numpy").attr("frombuffer");
    const py::object flat = frombuffer(buffer, "e", layout.n_cells() * n_embd, offset);
    return flat.attr("reshape")(layout.n_cells(), n_embd);
}

Array<Half> key_view(const py::buffer& buffer, const StateLayout& layout, std::size_t layer) {
    check_layer(layout, layer);
    return row_view(buffer, layout, layout.layers[layer].k_offset, layout.layers[layer].n_embd_k());
}

Array<Half> value_rows(const py::buffer& buffer, const StateLayout& layout, std::size_t layer) {
    check_layer(layout, layer);
    const std::size_t n_embd = layout.layers[layer].n_embd_v;
    if (!layout.v_trans) {
        return row_view(buffer, layout, layout.layers[layer].v_offset, n_embd);
    }
    Array<Half> rows({static_cast<py::ssize_t>(layout.n_cells()), static_cast<py::ssize_t>(n_embd)});
    const auto info = request_bytes(buffer, false);
    Half* target = rows.mutable_data();
    const py::gil_scoped_release release;
    read_value_rows(bytes_of(info), layout, layer, target);
    return rows;
}

void set_positions(const py::buffer& buffer, const StateLayout& layout,
                   const Array<std::int32_t>& positions) {
    const auto info = request_bytes(buffer, true);
    write_positions(writable_bytes_of(info), layout, as_span(positions, "positions"));
}

std::vector<const Half*> row_pointers(const Rows& rows, const char* name, std::size_t n_rows,
                                      const StateLayout& layout, bool keys) {
    if (rows.size() != layout.layers.size()) {
        throw std::invalid_argument(std::string(name) + " must hold one array per layer of the template");
    }
    std::vector<const Half*> pointers;
    for (std::size_t l = 0; l < rows.size(); ++l) {
        require_2d(rows[l], name);
        const std::size_t width = keys ? layout.layers[l].n_embd_k() : layout.layers[l].n_embd_v;
        if (rows[l].shape(0) != static_cast<py::ssize_t>(n_rows) ||
            rows[l].shape(1) != static_cast<py::ssize_t>(width)) {
            throw std::invalid_argument(std::string(name) + " of layer " + std::to_string(l) + " must be [" +
                                        std::to_string(n_rows) + ", " + std::to_string(width) + "]");
        }
        pointers.push_back(rows[l].data());
    }
    return pointers;
}

py::object build(const StateLayout& like, const Array<std::int32_t>& positions, const Rows& keys,
                 const Rows& values, const std::optional<py::buffer>& out) {
    const auto places = as_span(positions, "positions");
    const auto key_rows = row_pointers(keys, "keys", places.size(), like, true);
    const auto value_rows = row_pointers(values, "values", places.size(), like, false);
    const std::size_t size = state_size(like, places.size());
    py::object made = out ? static_cast<py::object>(*out)
                          : py::reinterpret_steal<py::object>(
                                PyByteArray_FromStringAndSize(nullptr, static_cast<py::ssize_t>(size)));
    if (!made) {
        throw py::error_already_set();
    }
    const auto info = request_bytes(py::reinterpret_borrow<py::buffer>(made), true);
    {
        const py::gil_scoped_release release;
        build_state(like, places, key_rows, value_rows, writable_bytes_of(info));
    }
    return made;
}

void register_layouts(py::module_& module) {
    py::class_<LayerLayout>(module, "LayerLayout",
                            "Where one layer's K and V lie in a sequence state, in bytes.")
        .def_readonly("k_type", &LayerLayout::k_type)
        .def_readonly("k_row_bytes", &LayerLayout::k_row_bytes)
        .def_readonly("k_offset", &LayerLayout::k_offset)
        .def_property_readonly("n_embd_k", &LayerLayout::n_embd_k)
        .def_readonly("v_type", &LayerLayout::v_type)
        .def_readonly("v_row_bytes", &LayerLayout::v_row_bytes, "0 when V is stored transposed.")
        .def_readonly("v_element_bytes", &LayerLayout::v_element_bytes, "0 unless V is stored transposed.")
        .def_readonly("n_embd_v", &LayerLayout::n_embd_v)
        .def_readonly("v_offset", &LayerLayout::v_offset);
    py::class_<StateLayout>(module, "StateLayout",
                            "One sequence of the KV cache as llama.cpp writes it; rows are in cell order.")
        .def_property_readonly("n_cells", &StateLayout::n_cells)
        .def_property_readonly("n_layer", [](const StateLayout& layout) { return layout.layers.size(); })
        .def_property_readonly(
            "section_layers",
            [](const StateLayout& layout) {
                std::vector<std::size_t> counts;
                for (const SectionLayout& section : layout.sections) {
                    counts.push_back(section.n_layer);
                }
                return counts;
            },
            "Layers of each section: of the one cache, or of the full and the sliding layers' caches.")
        .def_readonly("v_trans", &StateLayout::v_trans)
        .def_property_readonly(
            "positions", [](const StateLayout& layout) { return copy_of<std::int32_t>(layout.positions); })
        .def_readonly("seq_id", &StateLayout::seq_id)
        .def_property_readonly("layers", [](const StateLayout& layout) { return layout.layers; })
        .def_readonly("total_bytes", &StateLayout::total_bytes)
        .def("size_for", &state_size, py::arg("n_cells"),
             "Bytes of a state of this family with n_cells cells.");
}

}  // namespace

void register_state(py::module_& module) {
    register_layouts(module);
    module.def("parse_state", &parse, py::arg("buffer"), py::kw_only(), py::arg("n_pos_per_embd") = 1,
               R"(Read the layout of a sequence state; raises FormatError naming the field that is not known.

Known are one section, or two with the same cells in the same order, one stream, one sequence per cell and f16
rows, with V in rows or transposed. An empty sequence gives a layout without layers.)");
    module.def("align_state", &align, py::arg("buffer"),
               R"(Bring the rows of a state's second section into the order of the first one's, in place.

Raises FormatError naming the field that is not known, also when the sections hold different positions.)");
    module.def("build_state", &build, py::arg("template"), py::arg("positions").noconvert(),
               py::arg("keys").noconvert(), py::arg("values").noconvert(), py::arg("out") = py::none(),
               R"(Write a state of the template's family: any number of cells, the same layers and V layout.

positions is int32 [n]; keys and values hold one float16 [n, n_embd] per layer. Returns a new bytearray, or
`out` with its first template.size_for(n) bytes written.)");
    module.def("state_key", &key_view, py::arg("buffer"), py::arg("layout"), py::arg("layer"),
               "K rows of a layer, float16 [n_cells, n_embd_k]: a view, writable when the buffer is.");
    module.def(
        "state_value", &value_rows, py::arg("buffer"), py::arg("layout"), py::arg("layer"),
        "V rows of a layer, float16 [n_cells, n_embd_v]: a view, or a copy when V is stored transposed.");
    module.def("set_state_positions", &set_positions, py::arg("buffer"), py::arg("layout"),
               py::arg("positions").noconvert(),
               "Overwrite the cells' positions in a writable state buffer.");
}

}  // namespace nexus::bindings
