#include "random/mersenne_twister.hpp"

#include <algorithm>
#include <array>

namespace tensile {

namespace {

using Block = std::array<std::uint32_t, TwisterState::words>;

constexpr std::size_t distance = 397;  // the recurrence combines words at this distance

std::uint32_t twisted(std::uint32_t high, std::uint32_t low) noexcept {
  const std::uint32_t joined = (high & 0x80000000U) | (low & 0x7fffffffU);
  return (joined >> 1) ^ ((0U - (low & 1U)) & 0x9908b0dfU);
}

void make_next_block(Block& block) noexcept {
  constexpr std::size_t ahead = TwisterState::words - distance;
  for (std::size_t k = 0; k < ahead; ++k) {
    block[k] = block[k + distance] ^ twisted(block[k], block[k + 1]);
  }
  for (std::size_t k = ahead; k < TwisterState::words - 1; ++k) {
    block[k] = block[k - ahead] ^ twisted(block[k], block[k + 1]);
  }
  block.back() = block[distance - 1] ^ twisted(block.back(), block.front());
}

}  // namespace

void skip_words(TwisterState& state, std::uint64_t count) noexcept {
  auto left = static_cast<std::uint64_t>(state.left);
  if (count < left) {
    state.left = static_cast<std::int32_t>(left - count);
    state.next += count;
    return;
  }
  Block block;
  std::transform(std::begin(state.block), std::end(state.block), block.begin(),
                 [](std::uint64_t word) { return static_cast<std::uint32_t>(word); });
  std::uint64_t drawn = 0;  // of the last block
  while (count >= left) {
    make_next_block(block);
    count -= left;
    left = TwisterState::words;
    drawn = 1;
  }
  std::copy(block.begin(), block.end(), std::begin(state.block));
  state.left = static_cast<std::int32_t>(left - count);
  state.next = drawn + count;
}

}  // namespace tensile
