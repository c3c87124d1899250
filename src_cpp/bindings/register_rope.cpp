#include <pybind11/stl.h>

#include <optional>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "core/rope.hpp"

namespace nexus::bindings {
namespace {

RopePairing pairing_named(const std::string& name) {
    if (const auto pairing = parse_rope_pairing(name)) {
        return *pairing;
    }
    throw std::invalid_argument("pairing must be 'norm' or 'neox', not '" + name + "'");
}

RopeKernel kernel_named(const std::string& name) {
    if (name == "auto") {
        return rope_kernels().front();
    }
    for (const RopeKernel kernel : rope_kernels()) {
        if (name_of(kernel) == name) {
            return kernel;
        }
    }
    throw std::invalid_argument("no rotation kernel '" + name + "' on this processor; see rope_kernels()");
}

void rotate(Array<Half> rows, std::size_t head_dim, std::size_t n_rot, const std::string& pairing,
            const Array<std::int32_t>& deltas, const Array<double>& inv_freq, const std::string& kernel) {
    require_2d(rows, "rows");
    const auto width = static_cast<std::size_t>(rows.shape(1));
    if (head_dim == 0 || width % head_dim != 0) {
        throw std::invalid_argument("a row must hold whole heads of head_dim numbers");
    }
    const auto shifts = as_span(deltas, "deltas");
    if (shifts.size() != static_cast<std::size_t>(rows.shape(0))) {
        throw std::invalid_argument("deltas must hold one number per row");
    }
    const RopeShape shape{width / head_dim, head_dim, n_rot, pairing_named(pairing)};
    const RopeKernel chosen = kernel_named(kernel);
    const auto frequencies = as_span(inv_freq, "inv_freq");
    Half* data = rows.mutable_data();
    const py::gil_scoped_release release;
    rotate_keys(data, shape, shifts, frequencies, chosen);
}

Array<double> frequencies(std::size_t n_rot, double base, double scale,
                          const std::optional<Array<float>>& factors, double ext_factor, double n_ctx_orig,
                          double beta_fast, double beta_slow) {
    const auto given = factors ? as_span(*factors, "factors") : std::span<const float>{};
    const auto result = rope_frequencies(n_rot, base, scale, given,
                                         YarnScaling{ext_factor, n_ctx_orig, beta_fast, beta_slow});
    return copy_of<double>(result);
}

std::vector<std::string> kernel_names() {
    std::vector<std::string> names;
    for (const RopeKernel kernel : rope_kernels()) {
        names.emplace_back(name_of(kernel));
    }
    return names;
}

}  // namespace

void register_rope(py::module_& module) {
    module.def("rope_kernels", &kernel_names,
               "Rotation kernels usable here, best first; all give the same bits.");
    module.def("rope_frequencies", &frequencies, py::kw_only(), py::arg("n_rot"), py::arg("base"),
               py::arg("scale") = 1.0, py::arg("factors") = py::none(), py::arg("ext_factor") = 0.0,
               py::arg("n_ctx_orig") = 0.0, py::arg("beta_fast") = 32.0, py::arg("beta_slow") = 1.0,
               R"(Radians per position of each rotating pair, float64 [n_rot / 2].

scale * base ** (-2 i / n_rot) / factors[i]; with a nonzero ext_factor, mixed by frequency as YaRN prescribes.
The attention magnitude of YaRN is no part of it, since a rotation must keep norms.)");
    module.def("rotate_keys", &rotate, py::arg("rows").noconvert(), py::kw_only(), py::arg("head_dim"),
               py::arg("n_rot"), py::arg("pairing"), py::arg("deltas").noconvert(),
               py::arg("inv_freq").noconvert(), py::arg("kernel") = "auto",
               R"(Rotate K rows in place, row r by deltas[r] positions.

rows is float16 [n, n_head_kv * head_dim], writable and in C order. The first n_rot numbers of each head turn;
pairing is "norm" for (2i, 2i + 1) or "neox" for (i, i + n_rot / 2). A delta of 0 leaves the bits alone.)");
}

}  // namespace nexus::bindings
