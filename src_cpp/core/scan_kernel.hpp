#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/scan_job.hpp"

namespace nexus {

enum class ScanKernel : std::uint8_t { kAvx512Vnni, kAvx2, kNeonDotProduct, kNeon, kScalar };

std::string_view name_of(ScanKernel kernel) noexcept;
// The kernels that this build has and this processor runs, best first. All give the same numbers.
std::vector<ScanKernel> scan_kernels();
// Named as by name_of, or "auto" for the best; throws std::invalid_argument when it does not run here.
ScanKernel scan_kernel_named(std::string_view name);

namespace detail {
ScanTiles function_of(ScanKernel kernel) noexcept;
}

}  // namespace nexus
