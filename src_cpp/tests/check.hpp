#pragma once

#include <atomic>
#include <cstdio>
#include <cstdlib>

// A test is a program: checks count what fails and go on, and `finish` is what main returns.
namespace nexus::testing {

inline std::atomic<int> failures{0};

inline void check(bool holds, const char* what, const char* file, int line) {
    if (!holds) {
        ++failures;
        (void)std::fprintf(stderr, "%s:%d: %s\n", file, line, what);
    }
}

inline int finish() { return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE; }

// The exception a call throws is handed to `inspect`; false when it throws none of that type.
template <typename Error, typename Call, typename Inspect>
bool throws(Call call, Inspect inspect) {
    try {
        call();
    } catch (const Error& error) {
        return inspect(error);
    }
    return false;
}

template <typename Error, typename Call>
bool throws(Call call) {
    return throws<Error>(call, [](const Error&) { return true; });
}

}  // namespace nexus::testing

#define CHECK(condition) nexus::testing::check((condition), #condition, __FILE__, __LINE__)
