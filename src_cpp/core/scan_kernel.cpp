#include "core/scan_kernel.hpp"

#include <stdexcept>
#include <string>

#include "core/cpu.hpp"

namespace nexus {

std::string_view name_of(ScanKernel kernel) noexcept {
    switch (kernel) {
        case ScanKernel::kAvx512Vnni:
            return "avx512vnni";
        case ScanKernel::kAvx2:
            return "avx2";
        case ScanKernel::kNeonDotProduct:
            return "neon_dotprod";
        case ScanKernel::kNeon:
            return "neon";
        case ScanKernel::kScalar:
            break;
    }
    return "scalar";
}

std::vector<ScanKernel> scan_kernels() {
    const CpuFeatures& cpu = cpu_features();
    std::vector<ScanKernel> usable;
    if (cpu.avx512vnni) {
        usable.push_back(ScanKernel::kAvx512Vnni);
    }
    if (cpu.avx2) {
        usable.push_back(ScanKernel::kAvx2);
    }
    if (cpu.neon_dotprod) {
        usable.push_back(ScanKernel::kNeonDotProduct);
    }
    if (cpu.neon) {
        usable.push_back(ScanKernel::kNeon);
    }
    usable.push_back(ScanKernel::kScalar);
    return usable;
}

ScanKernel scan_kernel_named(std::string_view name) {
    const auto usable = scan_kernels();
    if (name == "auto") {
        return usable.front();
    }
    for (const ScanKernel kernel : usable) {
        if (name_of(kernel) == name) {
            return kernel;
        }
    }
    throw std::invalid_argument("no scan kernel '" + std::string(name) + "' on this processor");
}

namespace detail {

ScanTiles function_of(ScanKernel kernel) noexcept {
    switch (kernel) {
#if defined(NEXUS_X86)
        case ScanKernel::kAvx512Vnni:
            return scan_tiles_avx512vnni;
        case ScanKernel::kAvx2:
            return scan_tiles_avx2;
#elif defined(NEXUS_AARCH64)
        case ScanKernel::kNeonDotProduct:
            return scan_tiles_neon_dotprod;
        case ScanKernel::kNeon:
            return scan_tiles_neon;
#endif
        default:
            return scan_tiles_scalar;
    }
}

}  // namespace detail
}  // namespace nexus
