#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/half.hpp"

// Lets arrays of numpy.float16 pass as arrays of our Half.
template <>
struct pybind11::detail::npy_format_descriptor<nexus::Half> {
    static constexpr auto name = const_name("numpy.float16");
    static pybind11::dtype dtype() { return pybind11::dtype("e"); }
    static std::string format() { return "e"; }
};

namespace nexus::bindings {

namespace py = pybind11;

template <typename T>
class ExactArray;

}  // namespace nexus::bindings

template <typename T>
struct pybind11::detail::handle_type_name<nexus::bindings::ExactArray<T>> {
    static constexpr auto name =
        const_name("numpy.typing.NDArray[") + npy_format_descriptor<T>::name + const_name("]");
};

namespace nexus::bindings {

// Arguments of this type are taken as they are (C order, exact type): bind them with .noconvert().
template <typename T>
using Array = py::array_t<T, py::array::c_style>;

// An argument like Array<T>, checked by a few comparisons instead of a call into numpy: for functions that
// themselves take a microsecond.
template <typename T>
class ExactArray : public py::array {
  public:
    PYBIND11_OBJECT_DEFAULT(ExactArray, py::array, is_exact)

    static bool is_exact(PyObject* object) {
        if (!py::isinstance<py::array>(object)) {
            return false;
        }
        const auto candidate = py::reinterpret_borrow<py::array>(object);
        constexpr int kWanted = int{py::array::c_style} | int{py::detail::npy_api::NPY_ARRAY_ALIGNED_};
        return (candidate.flags() & kWanted) == kWanted &&
               candidate.dtype().normalized_num() == py::dtype::num_of<T>();
    }
};

template <typename T>
std::span<const T> as_span(const ExactArray<T>& array, const char* name) {
    if (array.ndim() != 1) {
        throw std::invalid_argument(std::string(name) + " must have one dimension");
    }
    return {static_cast<const T*>(array.data()), static_cast<std::size_t>(array.size())};
}

template <typename T>
std::span<const T> as_span(const Array<T>& array, const char* name) {
    if (array.ndim() != 1) {
        throw std::invalid_argument(std::string(name) + " must have one dimension");
    }
    return {array.data(), static_cast<std::size_t>(array.size())};
}

template <typename T>
void require_2d(const Array<T>& array, const char* name) {
    if (array.ndim() != 2) {
        throw std::invalid_argument(std::string(name) + " must have two dimensions");
    }
    if (reinterpret_cast<std::uintptr_t>(array.data()) % alignof(T) != 0) {
        throw std::invalid_argument(std::string(name) + " must be aligned to its element size");
    }
}

template <typename T>
Array<T> copy_of(std::span<const T> values) {
    return Array<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

inline std::span<const std::byte> bytes_of(const py::buffer_info& info) {
    return {static_cast<const std::byte*>(info.ptr), static_cast<std::size_t>(info.size * info.itemsize)};
}

inline std::span<std::byte> writable_bytes_of(const py::buffer_info& info) {
    return {static_cast<std::byte*>(info.ptr), static_cast<std::size_t>(info.size * info.itemsize)};
}

// The bytes behind a buffer, which must be contiguous; hold the result for as long as they are used.
py::buffer_info request_bytes(const py::buffer& buffer, bool writable);

}  // namespace nexus::bindings
