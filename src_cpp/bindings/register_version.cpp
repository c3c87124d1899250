#include "bindings/register.hpp"
#include "core/version.hpp"

namespace nexus::bindings {

void register_version(pybind11::module_& module) {
    module.def(
        "core_version", [] { return pybind11::str(core_version().data(), core_version().size()); },
        "Version of the native core.");
}

}  // namespace nexus::bindings
