#include "guard.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "fault.hpp"
#include "shared_memory.hpp"

namespace tensile {
namespace {

constexpr std::size_t most_released = 100'000;  // covers several iterations; earlier releases explain little

std::atomic<const Guard*> latest{nullptr};
struct sigaction before {};  // the handler of memory faults that was installed before ours

std::uintptr_t page_of(std::uintptr_t address) { return address / page_bytes() * page_bytes(); }

}  // namespace

Guard::Guard(std::string who, std::uintptr_t begin) : who_(std::move(who)), begin_(begin) {
  if (latest.exchange(this) != nullptr) return;
  struct sigaction action {};
  action.sa_sigaction = &on_fault;
  action.sa_flags = SA_SIGINFO;
  if (::sigaction(SIGSEGV, &action, &before) != 0) throw_system_fault("sigaction", "strict mode", errno);
}

void Guard::cover(std::uint64_t size_bytes) {
  size_bytes_ = size_bytes;
  protect(begin_, rounded_up(begin_ + size_bytes, page_bytes()), PROT_NONE);
  for (const auto& [address, tensor] : live_) {
    protect(page_of(address), rounded_up(address + tensor.size_bytes, page_bytes()), PROT_READ | PROT_WRITE);
  }
}

void Guard::open(std::uintptr_t address, std::uint64_t size_bytes, std::string name, std::uint64_t position) {
  const std::uintptr_t end = address + size_bytes;
  protect(page_of(address), rounded_up(end, page_bytes()), PROT_READ | PROT_WRITE);
  std::memset(reinterpret_cast<void*>(address), poison, size_bytes);
  live_[address] = {size_bytes, std::move(name), position};
}

void Guard::shut(std::uintptr_t address, std::uint64_t position) {
  const auto entry = live_.find(address);
  if (entry == live_.end()) return;
  const std::uintptr_t end = address + entry->second.size_bytes;
  std::memset(reinterpret_cast<void*>(address), poison, entry->second.size_bytes);
  const auto next = std::next(entry);
  const std::uintptr_t free_end = next == live_.end() ? begin_ + size_bytes_ : next->first;
  std::uintptr_t free_begin = begin_;
  if (entry != live_.begin()) free_begin = std::prev(entry)->first + std::prev(entry)->second.size_bytes;
  entry->second.position = position;
  released_.emplace_back(address, std::move(entry->second));
  if (released_.size() > most_released) released_.pop_front();
  live_.erase(entry);
  // The last page may extend beyond the block; no tensor uses that part, so the page counts as whole.
  const std::uintptr_t whole_end =
      next == live_.end() ? rounded_up(free_end, page_bytes()) : free_end / page_bytes() * page_bytes();
  const std::uintptr_t first = std::max(rounded_up(free_begin, page_bytes()), page_of(address));
  const std::uintptr_t last = std::min(whole_end, rounded_up(end, page_bytes()));
  if (first < last) protect(first, last, PROT_NONE);
}

// The handler runs in the thread that faulted, outside this class: that thread is not changing the guard.
void Guard::on_fault(int /*number*/, siginfo_t* info, void* /*context*/) {
  if (const Guard* const guard = latest.load()) guard->report(reinterpret_cast<std::uintptr_t>(info->si_addr));
  ::sigaction(SIGSEGV, &before, nullptr);  // the instruction faults again, and the earlier handler deals with it
}

void Guard::report(std::uintptr_t address) const {
  if (address - begin_ >= size_bytes_) return;
  std::string message =
      text(who_, ": memory that is away was touched: byte ", address - begin_, " of the planned block");
  const auto last = std::find_if(released_.rbegin(), released_.rend(),
                                 [&](const auto& entry) { return address - entry.first < entry.second.size_bytes; });
  if (last != released_.rend()) {
    const auto& [start, tensor] = *last;
    message += text(", where ", tensor.name, " of ", tensor.size_bytes, " bytes lay until position ", tensor.position,
                    " of the program, at its byte ", address - start);
  }
  message += "\n";
  if (::write(STDERR_FILENO, message.data(), message.size()) < 0) return;
}

void Guard::protect(std::uintptr_t begin, std::uintptr_t end, int protection) const {
  if (begin < end && ::mprotect(reinterpret_cast<void*>(begin), end - begin, protection) != 0) {
    throw_system_fault("mprotect", text("strict mode, for ", end - begin, " bytes of a planned block"), errno);
  }
}

}  // namespace tensile
