#include "window.hpp"

#include <algorithm>

#include "fault.hpp"

namespace tensile {

Window::~Window() {
  try {
    while (!pieces_.empty()) pop();
  } catch (const Fault&) {
    // The remaining pieces are released when the process ends.
  }
}

bool Window::resize(std::uint64_t size_bytes, bool gathers) {
  const std::uint64_t piece_bytes = memory_->piece_bytes();
  const std::uint64_t kept_bytes = kept(size_bytes, gathers);
  while (size_bytes_ > kept_bytes) pop();
  while (size_bytes_ < size_bytes) {
    if (size_bytes_ + piece_bytes > memory_->size_bytes()) return false;
    if (!push(std::min(piece_bytes, rounded_up(size_bytes - size_bytes_, memory_->unit_bytes())))) return false;
  }
  return true;
}

std::uint64_t Window::kept(std::uint64_t size_bytes, bool gathers) const {
  const std::uint64_t stays_bytes = gathers ? gathered_bytes() : size_bytes_;
  const std::uint64_t piece_bytes = memory_->piece_bytes();
  std::uint64_t kept_bytes = size_bytes_;
  for (auto piece = pieces_.rbegin(); piece != pieces_.rend(); ++piece) {
    const std::uint64_t start_bytes = kept_bytes - piece->size_bytes;
    const bool goes = start_bytes >= size_bytes || start_bytes >= stays_bytes;
    const bool grows = size_bytes > size_bytes_ && piece->size_bytes < piece_bytes;
    if (!goes && !grows) break;
    kept_bytes = start_bytes;
  }
  return kept_bytes;
}

// Return the length of the window up to the first piece that lies across regions.
std::uint64_t Window::gathered_bytes() const {
  std::uint64_t gathered = 0;
  for (const Piece& piece : pieces_) {
    if (memory_->is_scattered(piece.taken)) break;
    gathered += piece.size_bytes;
  }
  return gathered;
}

bool Window::push(std::uint64_t size_bytes) {
  void* const taken = memory_->add(size_bytes_, size_bytes);
  if (taken == nullptr) return false;
  pieces_.push_back({taken, size_bytes});
  size_bytes_ += size_bytes;
  return true;
}

void Window::pop() {
  const Piece piece = pieces_.back();
  pieces_.pop_back();
  size_bytes_ -= piece.size_bytes;
  memory_->remove(piece.taken, size_bytes_, piece.size_bytes);
}

}  // namespace tensile
