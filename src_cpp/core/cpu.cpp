#include "core/cpu.hpp"

#if defined(NEXUS_X86)
#include <cpuid.h>
#endif
#if defined(NEXUS_AARCH64) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace nexus {
namespace {

#if defined(NEXUS_X86)
// The compilers' own question does not know this name everywhere yet. The extension works on the 128-bit
// registers that every system saves.
bool has_sha_ni() noexcept {
    constexpr unsigned kShaBit = 1U << 29U;
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (ebx & kShaBit) != 0;
}
#endif

CpuFeatures detect() noexcept {
    CpuFeatures found;
#if defined(NEXUS_X86)
    __builtin_cpu_init();
    // These also ask whether the operating system saves the wide registers.
    found.avx2 = __builtin_cpu_supports("avx2") != 0;
    found.f16c = found.avx2 && __builtin_cpu_supports("f16c") != 0;
    found.sha_ni =
        has_sha_ni() && __builtin_cpu_supports("sse4.1") != 0 && __builtin_cpu_supports("ssse3") != 0;
    found.fma = __builtin_cpu_supports("fma") != 0;
    found.avx512vnni = __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
                       __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512vnni") != 0;
#elif defined(NEXUS_AARCH64)
    found.neon = true;                                     // part of the base architecture
#if defined(__linux__)
    constexpr unsigned long kAsimdDotProduct = 1UL << 20;  // HWCAP_ASIMDDP
    found.neon_dotprod = (getauxval(AT_HWCAP) & kAsimdDotProduct) != 0;
#elif defined(__APPLE__)
    found.neon_dotprod = true;  // every Apple 64-bit desktop processor
#endif
#endif
    return found;
}

}  // namespace

const CpuFeatures& cpu_features() noexcept {
    static const CpuFeatures kFound = detect();
    return kFound;
}

}  // namespace nexus
