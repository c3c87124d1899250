#include "bindings/arrays.hpp"

namespace nexus::bindings {

py::buffer_info request_bytes(const py::buffer& buffer, bool writable) {
    auto view = std::make_unique<Py_buffer>();
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(buffer.ptr(), view.get(), flags) != 0) {
        throw py::error_already_set();
    }
    return py::buffer_info(view.release());
}

}  // namespace nexus::bindings
