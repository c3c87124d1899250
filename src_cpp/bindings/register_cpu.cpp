#include <pybind11/stl.h>

#include <map>
#include <string>

#include "bindings/register.hpp"
#include "core/cpu.hpp"

namespace nexus::bindings {

void register_cpu(pybind11::module_& module) {
    module.def(
        "cpu_features",
        [] {
            const CpuFeatures& found = cpu_features();
            return std::map<std::string, bool>{
                {"avx2", found.avx2}, {"avx512vnni", found.avx512vnni},
                {"f16c", found.f16c}, {"fma", found.fma},
                {"neon", found.neon}, {"neon_dotprod", found.neon_dotprod},
            };
        },
        "What this processor offers of the instruction sets that the kernels know.");
}

}  // namespace nexus::bindings
