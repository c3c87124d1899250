# Cross-builds the C++ tests for 64-bit ARM and runs them under user-mode emulation, so that the NEON kernels
# are exercised on any machine. With g++-aarch64-linux-gnu and qemu-user installed:
#
#   cmake --preset aarch64 && cmake --build --preset aarch64 && ctest --preset aarch64
#
# `-cpu max` has the dot-product extension, so that both NEON kernels run; test_scan names those it ran.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64;-cpu;max)
