// Counter-based random numbers: one for every (key, position), without state; the same as whet.streams.uniform.
#pragma once

#include <cstdint>

namespace whet {

constexpr int64_t kLargestSeed = (int64_t{1} << 31) - 1;  // a key is a seed shifted by 32 bits plus a number

// The key of a numbered stream of a seed: in training, of a step.
inline uint64_t stream_key(int64_t seed, int64_t number) {
    return (static_cast<uint64_t>(seed) << 32U) + static_cast<uint64_t>(number);
}

// A number in [0, 1) with 53 random bits. SplitMix64 (Steele et al. 2014) at the given position of its sequence.
inline double uniform(uint64_t key, int64_t position) {
    uint64_t z = key + (static_cast<uint64_t>(position) + 1) * 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    z ^= z >> 31U;
    return static_cast<double>(z >> 11U) * 0x1p-53;
}

}  // namespace whet
