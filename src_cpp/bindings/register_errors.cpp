#include <pybind11/gil_safe_call_once.h>

#include <cerrno>

#include "bindings/register.hpp"
#include "core/errors.hpp"
#include "core/file.hpp"

namespace nexus::bindings {
namespace {

namespace py = pybind11;

PYBIND11_CONSTINIT py::gil_safe_call_once_and_store<py::object> format_error_type;

void raise_format_error(const FormatError& error) {
    const py::object& type = format_error_type.get_stored();
    py::object instance = type(error.what());
    instance.attr("field") = error.field();
    instance.attr("expected") = error.expected();
    instance.attr("found") = error.found();
    PyErr_SetObject(type.ptr(), instance.ptr());
}

}  // namespace

void register_errors(py::module_& module) {
    format_error_type.call_once_and_store_result([&module]() -> py::object {
        py::exception<FormatError> type(module, "FormatError", PyExc_ValueError);
        type.doc() = "A buffer or file is not what its reader knows; `field` names what differs.";
        for (const char* name : {"field", "expected", "found"}) {
            type.attr(name) = "";
        }
        return type;
    });
    py::register_exception_translator([](std::exception_ptr pointer) {
        try {
            if (pointer) {
                std::rethrow_exception(pointer);
            }
        } catch (const FormatError& error) {
            raise_format_error(error);
        } catch (const FileError& error) {
            errno = error.code().value();
            PyErr_SetFromErrnoWithFilename(PyExc_OSError, error.path().c_str());
        }
    });
    py::register_exception<ArenaFull>(module, "ArenaFull", PyExc_MemoryError).doc() =
        "An arena has no room for what was asked; nothing was changed.";
}

}  // namespace nexus::bindings
