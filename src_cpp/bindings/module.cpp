#include "bindings/register.hpp"

PYBIND11_MODULE(_core, module) {
    module.doc() = "Native kernels of nexus_lab.";
    nexus::bindings::register_bridge(module);
    nexus::bindings::register_version(module);
    nexus::bindings::register_errors(module);
    nexus::bindings::register_arena(module);
    nexus::bindings::register_block(module);
    nexus::bindings::register_cpu(module);
    nexus::bindings::register_op_tree(module);
    nexus::bindings::register_rope(module);
    nexus::bindings::register_scan(module);
    nexus::bindings::register_state(module);
}
