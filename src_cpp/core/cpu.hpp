#pragma once

#if defined(__x86_64__) || defined(__i386__)
#define NEXUS_X86 1
#endif
#if defined(__aarch64__)
#define NEXUS_AARCH64 1
#endif

namespace nexus {

// What this processor can run, asked once. The binary is built for the baseline of its architecture, and
// every faster path is entered only behind one of these.
struct CpuFeatures {
    bool avx2 = false;
    bool f16c = false;
    bool fma = false;
    bool avx512vnni = false;  // with AVX-512 F, BW, VL, which the kernel needs too
    bool sha_ni = false;
    bool neon = false;
    bool neon_dotprod = false;
};

const CpuFeatures& cpu_features() noexcept;

}  // namespace nexus
