#pragma once

#include <pybind11/pybind11.h>

namespace nexus::bindings {

void register_arena(pybind11::module_& module);
void register_block(pybind11::module_& module);
void register_cpu(pybind11::module_& module);
void register_errors(pybind11::module_& module);
void register_op_tree(pybind11::module_& module);
void register_rope(pybind11::module_& module);
void register_scan(pybind11::module_& module);
void register_state(pybind11::module_& module);
void register_bridge(pybind11::module_& module);
void register_version(pybind11::module_& module);

}  // namespace nexus::bindings
