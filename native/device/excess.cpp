#include "excess.hpp"

#include <algorithm>
#include <utility>

namespace tensile {

void ExcessLog::note(std::uint64_t position, std::uintptr_t address, std::uint64_t size_bytes) {
  const std::uint64_t taken_bytes = (size_bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
  if (position != position_) {
    live_.clear();
    live_bytes_ = 0;
    position_ = position;
    largest_.push_back({position, 0});
  }
  if (address != 0) live_.push_back({address, taken_bytes});
  live_bytes_ += taken_bytes;
  largest_.back().size_bytes = std::max(largest_.back().size_bytes, live_bytes_);
}

void ExcessLog::release(std::uintptr_t address) {
  const auto piece =
      std::find_if(live_.begin(), live_.end(), [&](const Piece& live) { return live.address == address; });
  if (piece == live_.end()) return;
  live_bytes_ -= piece->size_bytes;
  live_.erase(piece);
}

std::vector<Excess> ExcessLog::take() {
  live_.clear();
  live_bytes_ = 0;
  position_ = ~std::uint64_t{0};
  return std::exchange(largest_, {});
}

}  // namespace tensile
