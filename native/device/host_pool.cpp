// Of the pool's range of addresses, [0, acquired_bytes_) has memory; the rest is only reserved. See host_pool.hpp.
#include "host_pool.hpp"

#include <algorithm>

#include "fault.hpp"
#include "forks.hpp"

namespace tensile {
namespace {

constexpr std::uint64_t growth_bytes = std::uint64_t{16}
                                       << 20;  // memory acquired at a time; touching its pages takes about 4 ms

}  // namespace

HostPool::HostPool(std::uint64_t limit_bytes, HostSupply supply)
    : supply_(std::move(supply)),
      limit_bytes_(limit_bytes / supply_.unit_bytes * supply_.unit_bytes),
      range_(
          reserve_address_space(std::max(rounded_up(limit_bytes_, page_bytes()), page_bytes()), supply_.is_memory)),
      forks_(forks()) {}

HostPool::~HostPool() {
  if (acquired_bytes_ == 0 || forks() != forks_) return;  // a forked child has a copy and must not give it back
  try {
    supply_.remove(range_.address(), rounded_up(acquired_bytes_, page_bytes()));
  } catch (const Fault&) {
    // The process's share of the machine's memory has ended (ledger_layout.hpp), so this memory counts no more.
  }
}

void HostPool::prepare(std::uint64_t size_bytes) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t end_bytes = std::min(size_bytes, limit_bytes_);
  if (end_bytes > acquired_bytes_) extend_to(std::min(rounded_up(end_bytes, growth_bytes), limit_bytes_));
}

std::byte* HostPool::allocate(std::uint64_t size_bytes) {
  if (size_bytes == 0) throw Fault(Fault::Kind::invariant, "a host buffer of 0 bytes");
  const std::lock_guard lock(mutex_);
  // A size beyond the limit is refused below; rounding it up could overflow.
  const std::uint64_t taken_bytes =
      size_bytes > limit_bytes_ ? size_bytes : rounded_up(size_bytes, supply_.unit_bytes);
  std::optional<Range> free_range = free_.best_fit(taken_bytes);
  if (!free_range && grow(taken_bytes)) free_range = free_.best_fit(taken_bytes);
  if (!free_range) throw_full(taken_bytes);
  std::byte* buffer = range_.address() + free_range->offset;
  live_.emplace(buffer, taken_bytes);
  free_.take({free_range->offset, taken_bytes});
  used_bytes_ += taken_bytes;
  high_water_bytes_ = std::max(high_water_bytes_, used_bytes_);
  return buffer;
}

void HostPool::free(const std::byte* buffer) {
  const std::lock_guard lock(mutex_);
  const auto entry = find(buffer);
  used_bytes_ -= entry->second;
  free_.add({static_cast<std::uint64_t>(buffer - range_.address()), entry->second});
  live_.erase(entry);
}

std::uint64_t HostPool::size_bytes(const std::byte* buffer) const {
  const std::lock_guard lock(mutex_);
  return find(buffer)->second;
}

std::vector<HostMove> HostPool::pack() {
  const std::lock_guard lock(mutex_);
  std::vector<std::pair<const std::byte*, std::uint64_t>> buffers(live_.begin(), live_.end());
  std::sort(buffers.begin(), buffers.end());
  std::vector<HostMove> moved;
  std::uint64_t end_bytes = 0;
  live_.clear();
  for (const auto& [buffer, size_bytes] : buffers) {
    std::byte* const from = range_.address() + (buffer - range_.address());  // `buffer` without const
    std::byte* const to = range_.address() + end_bytes;
    if (to != from) {
      supply_.move(to, from, size_bytes);
      moved.push_back({from, to});
    }
    live_.emplace(to, size_bytes);
    end_bytes += size_bytes;
  }
  free_ = {};
  if (acquired_bytes_ > end_bytes) free_.add({end_bytes, acquired_bytes_ - end_bytes});
  return moved;
}

void HostPool::resize_tail(std::uint64_t free_bytes) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t live_end_bytes = acquired_bytes_ - tail_bytes();
  if (free_bytes > limit_bytes_ - live_end_bytes) throw_full(free_bytes);
  const std::uint64_t end_bytes = std::min(rounded_up(live_end_bytes + free_bytes, page_bytes()), limit_bytes_);
  if (end_bytes > acquired_bytes_) extend_to(end_bytes);
  if (end_bytes == acquired_bytes_) return;
  const std::uint64_t start_bytes = rounded_up(end_bytes, page_bytes());
  free_.take({end_bytes, acquired_bytes_ - end_bytes});
  const std::uint64_t before_bytes = std::exchange(acquired_bytes_, end_bytes);
  if (before_bytes > start_bytes) {
    supply_.remove(range_.address() + start_bytes, rounded_up(before_bytes, page_bytes()) - start_bytes);
  }
}

HostUsage HostPool::usage() const {
  const std::lock_guard lock(mutex_);
  return {limit_bytes_, used_bytes_, high_water_bytes_, acquired_bytes_};
}

// Acquire more memory at the end, so that together with the last free range it holds `needed_bytes`. False if that
// would exceed the limit. `needed_bytes` fits into no free range, so it is more than the last one has.
bool HostPool::grow(std::uint64_t needed_bytes) {
  const std::uint64_t missing_bytes = needed_bytes - tail_bytes();
  if (missing_bytes > limit_bytes_ - acquired_bytes_) return false;
  const auto to = [&](std::uint64_t unit_bytes) {
    extend_to(std::min(acquired_bytes_ + rounded_up(missing_bytes, unit_bytes), limit_bytes_));
  };
  try {
    to(growth_bytes);
  } catch (const Fault& fault) {
    if (fault.kind() != Fault::Kind::memory) throw;
    to(page_bytes());  // memory is short: acquire only what is needed
  }
  return true;
}

// Return the length of the free range at the end of the acquired memory.
std::uint64_t HostPool::tail_bytes() const {
  const std::optional<Range> last = free_.last();
  return last && last->end() == acquired_bytes_ ? last->size_bytes : 0;
}

void HostPool::throw_full(std::uint64_t size_bytes) const {
  throw Fault(Fault::Kind::memory,
              text("the host pool has no ", size_bytes, " bytes in one piece: ", used_bytes_, " of its limit of ",
                   limit_bytes_, " bytes are in use"),
              "Raise the host pool's limit, or swap less.");
}

void HostPool::extend_to(std::uint64_t end_bytes) {
  // acquired_bytes_ is a whole number of pages here: it ends within a page only at the limit, beyond which nothing is
  // acquired, and nothing else uses the rest of that page.
  supply_.add(range_.address() + acquired_bytes_, rounded_up(end_bytes - acquired_bytes_, page_bytes()));
  const std::uint64_t start_bytes = std::exchange(acquired_bytes_, end_bytes);
  free_.add({start_bytes, end_bytes - start_bytes});
}

std::unordered_map<const std::byte*, std::uint64_t>::const_iterator HostPool::find(const std::byte* buffer) const {
  const auto entry = live_.find(buffer);
  if (entry == live_.end()) {
    throw Fault(Fault::Kind::invariant, text("address ", static_cast<const void*>(buffer),
                                             " is not, or is no longer, a buffer of the host pool"));
  }
  return entry;
}

}  // namespace tensile
