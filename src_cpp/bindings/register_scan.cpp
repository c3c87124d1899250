#include <pybind11/stl.h>

#include <mutex>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.hpp"
#include "bindings/register.hpp"
#include "core/int8_matrix.hpp"

namespace nexus::bindings {
namespace {

using Numbers = Array<std::int8_t>;
using Query = ExactArray<std::int8_t>;
using Result = std::tuple<Array<std::int64_t>, Array<std::int32_t>, int>;

// Below this many bytes a scan takes some tens of microseconds, and giving up the GIL would be most of it.
constexpr std::size_t kReleaseFrom = std::size_t{1} << 20U;

// A matrix whose scans may run without the GIL: whoever changes rows waits for them.
class GuardedMatrix {
  public:
    GuardedMatrix(std::size_t dim, const std::string& kernel) : matrix_(dim, scan_kernel_named(kernel)) {}

    [[nodiscard]] const Int8Matrix& get() const noexcept { return matrix_; }

    template <typename Work>
    void change(Work work) {
        const std::unique_lock guard(mutex_);
        work(matrix_);
    }

    template <typename Work>
    void search(Work work) const {
        if (matrix_.bytes() < kReleaseFrom) {
            work(matrix_);  // nobody can change rows while this thread holds the GIL
            return;
        }
        const py::gil_scoped_release release;
        // Declared last, so that it is given back before the GIL is asked for: a writer waits holding the
        // GIL.
        const std::shared_lock guard(mutex_);
        work(matrix_);
    }

  private:
    Int8Matrix matrix_;
    mutable std::shared_mutex mutex_;
};

std::span<const std::int8_t> all_numbers(const Numbers& rows, std::size_t dim, const char* name) {
    if (rows.ndim() < 1 || rows.ndim() > 2 || static_cast<std::size_t>(rows.shape(rows.ndim() - 1)) != dim) {
        throw std::invalid_argument(std::string(name) + " must have rows of " + std::to_string(dim) +
                                    " numbers");
    }
    return {rows.data(), static_cast<std::size_t>(rows.size())};
}

template <typename T>
std::span<T> span_of(Array<T>& array) {
    return {array.mutable_data(), static_cast<std::size_t>(array.size())};
}

template <typename Search>
Result search_into(std::size_t k, Search search) {
    Array<std::int64_t> ids(static_cast<py::ssize_t>(k));
    Array<std::int32_t> dots(static_cast<py::ssize_t>(k));
    TopKResult result{span_of(ids), span_of(dots)};
    search(result);
    if (result.size < k) {
        ids.resize({static_cast<py::ssize_t>(result.size)}, false);
        dots.resize({static_cast<py::ssize_t>(result.size)}, false);
    }
    return {std::move(ids), std::move(dots), result.margin};
}

Result top_k(const GuardedMatrix& self, const Query& query, std::size_t k) {
    const auto numbers = as_span(query, "query");
    return search_into(std::min(k, self.get().size()), [&](TopKResult& result) {
        self.search([&](const Int8Matrix& matrix) { matrix.top_k(numbers, result); });
    });
}

Result top_k_pooled(const GuardedMatrix& self, const Query& query, const ExactArray<std::int32_t>& groups,
                    std::size_t n_groups, std::size_t k) {
    const auto numbers = as_span(query, "query");
    const auto members = as_span(groups, "groups");
    return search_into(std::min(k, n_groups), [&](TopKResult& result) {
        self.search(
            [&](const Int8Matrix& matrix) { matrix.top_k_pooled(numbers, members, n_groups, result); });
    });
}

Array<std::int32_t> dots(const GuardedMatrix& self, const Query& query) {
    const auto numbers = as_span(query, "query");
    while (true) {
        Array<std::int32_t> out(static_cast<py::ssize_t>(self.get().size()));
        const auto target = span_of(out);
        bool fits = false;
        self.search([&](const Int8Matrix& matrix) {
            fits = matrix.size() == target.size();  // a writer may have come between
            if (fits) {
                matrix.dots(numbers, target);
            }
        });
        if (fits) {
            return out;
        }
    }
}

Numbers rows(const GuardedMatrix& self) {
    Numbers out({static_cast<py::ssize_t>(self.get().size()), static_cast<py::ssize_t>(self.get().dim())});
    self.get().read_rows(span_of(out));
    return out;
}

std::pair<Numbers, Array<float>> quantize(const Array<float>& values) {
    require_2d(values, "rows");
    const auto n = static_cast<std::size_t>(values.shape(0));
    const auto dim = static_cast<std::size_t>(values.shape(1));
    Numbers codes({values.shape(0), values.shape(1)});
    Array<float> scales(values.shape(0));
    const auto out = span_of(codes);
    const auto scale = span_of(scales);
    const float* source = values.data();
    {
        const py::gil_scoped_release release;
        for (std::size_t i = 0; i < n; ++i) {
            scale[i] = quantize_row({source + i * dim, dim}, out.subspan(i * dim, dim));
        }
    }
    return {std::move(codes), std::move(scales)};
}

std::vector<std::string> kernel_names() {
    std::vector<std::string> names;
    for (const ScanKernel kernel : scan_kernels()) {
        names.emplace_back(name_of(kernel));
    }
    return names;
}

void register_matrix(py::module_& module) {
    py::class_<GuardedMatrix>(
        module, "Int8Matrix",
        "Rows of int8 numbers in [-127, 127], compared with a query by exact dot products.")
        .def(py::init<std::size_t, const std::string&>(), py::arg("dim"), py::kw_only(),
             py::arg("kernel") = "auto", "kernel is one of scan_kernels(), or auto for the first of them.")
        .def(
            "append",
            [](GuardedMatrix& self, const Numbers& rows) {
                const auto numbers = all_numbers(rows, self.get().dim(), "rows");
                self.change([&](Int8Matrix& matrix) { matrix.append(numbers); });
            },
            py::arg("rows").noconvert(), "Add rows, int8 [n, dim] or [dim].")
        .def(
            "set_row",
            [](GuardedMatrix& self, std::size_t index, const Numbers& row) {
                const auto numbers = as_span(row, "row");
                self.change([&](Int8Matrix& matrix) { matrix.set_row(index, numbers); });
            },
            py::arg("index"), py::arg("row").noconvert())
        .def(
            "remove_row",
            [](GuardedMatrix& self, std::size_t index) {
                self.change([&](Int8Matrix& matrix) { matrix.remove_row(index); });
            },
            py::arg("index"), "Remove a row; later rows move up by one.")
        .def("__len__", [](const GuardedMatrix& self) { return self.get().size(); })
        .def_property_readonly("dim", [](const GuardedMatrix& self) { return self.get().dim(); })
        .def_property_readonly(
            "kernel", [](const GuardedMatrix& self) { return std::string(name_of(self.get().kernel())); })
        .def_property_readonly("nbytes", [](const GuardedMatrix& self) { return self.get().bytes(); })
        .def("rows", &rows, "A copy of all rows, int8 [n, dim].")
        .def("dots", &dots, py::arg("query"), "Dot product of each row with query (int8 [dim]), int32 [n].")
        .def("top_k", &top_k, py::arg("query"), py::arg("k"),
             R"((ids int64 [k], dots int32 [k], margin) of the best rows, best first.

k is clipped to the number of rows, and ties go to the lower row. margin is the best dot less the second best,
whatever k is; 0 with fewer than two rows.)")
        .def("top_k_pooled", &top_k_pooled, py::arg("query"), py::arg("groups"), py::arg("n_groups"),
             py::arg("k"),
             R"(As top_k, over groups of rows: a group counts as its best row.

groups is int32 [n], each in [0, n_groups); ids are groups. A group without rows is no candidate.)");
}

}  // namespace

void register_scan(py::module_& module) {
    module.def("scan_kernels", &kernel_names,
               "Scan kernels usable here, best first; all give the same numbers.");
    module.def(
        "quantize_rows", &quantize, py::arg("rows").noconvert(),
        R"(Symmetric int8 codes of each row and the scales that undo them: (int8 [n, dim], float32 [n]).

rows is float32 [n, dim]; the largest magnitude of a row becomes 127, and a row of zeros has scale 0.)");
    register_matrix(module);
}

}  // namespace nexus::bindings
