#include "bindings/register.hpp"

PYBIND11_MODULE(_core, module) {
    module.doc() = "Native kernels of nexus_lab.";
    nexus::bindings::register_bridge(module);
    nexus::bindings::register_version(module);
}
