// Marks of hot loops.
#pragma once

// A function so marked is compiled for several kinds of processor, one of which is chosen when the
// module is loaded. Contraction of a * b + c is off in these files (see CMakeLists.txt), so that
// all of them compute the same bits. Clang, which cannot do that here, compiles for one.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) &&       \
    !defined(FUGU_ONE_TARGET)
#define FUGU_KERNEL __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define FUGU_KERNEL
#endif

// Inlined into each of those versions, so that it is compiled for that processor too.
#if defined(__GNUC__)
#define FUGU_KERNEL_INLINE inline __attribute__((always_inline))
#else
#define FUGU_KERNEL_INLINE inline
#endif

// Before a loop: what one pass writes, no other pass reads.
#if defined(__clang__)
#define FUGU_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define FUGU_INDEPENDENT _Pragma("GCC ivdep")
#else
#define FUGU_INDEPENDENT
#endif
