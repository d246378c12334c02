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

constexpr std::size_t most_away = 100'000;  // some iterations: what went before says little

std::atomic<const Guard*> latest{nullptr};
struct sigaction before {};  // whoever was asked about faults until then

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
  for (const auto& [address, held] : here_) {
    protect(page_of(address), rounded_up(address + held.size_bytes, page_bytes()), PROT_READ | PROT_WRITE);
  }
}

void Guard::open(std::uintptr_t address, std::uint64_t size_bytes, std::string name, std::uint64_t position) {
  const std::uintptr_t end = address + size_bytes;
  protect(page_of(address), rounded_up(end, page_bytes()), PROT_READ | PROT_WRITE);
  std::memset(reinterpret_cast<void*>(address), poison, size_bytes);
  here_[address] = {size_bytes, std::move(name), position};
}

void Guard::shut(std::uintptr_t address, std::uint64_t position) {
  const auto found = here_.find(address);
  if (found == here_.end()) return;
  const std::uintptr_t end = address + found->second.size_bytes;
  std::memset(reinterpret_cast<void*>(address), poison, found->second.size_bytes);
  const auto next = std::next(found);
  const std::uintptr_t free_end = next == here_.end() ? begin_ + size_bytes_ : next->first;
  std::uintptr_t free_begin = begin_;
  if (found != here_.begin()) free_begin = std::prev(found)->first + std::prev(found)->second.size_bytes;
  found->second.position = position;
  away_.emplace_back(address, std::move(found->second));
  if (away_.size() > most_away) away_.pop_front();
  here_.erase(found);
  // What the last page holds beyond the block is nobody's.
  const std::uintptr_t whole_end =
      next == here_.end() ? rounded_up(free_end, page_bytes()) : free_end / page_bytes() * page_bytes();
  const std::uintptr_t first = std::max(rounded_up(free_begin, page_bytes()), page_of(address));
  const std::uintptr_t last = std::min(whole_end, rounded_up(end, page_bytes()));
  if (first < last) protect(first, last, PROT_NONE);
}

// The fault happened in this thread, and not in here: nothing is being changed by it.
void Guard::on_fault(int /*number*/, siginfo_t* info, void* /*context*/) {
  if (const Guard* const guard = latest.load()) guard->tell(reinterpret_cast<std::uintptr_t>(info->si_addr));
  ::sigaction(SIGSEGV, &before, nullptr);  // the instruction is tried again, and the fault is theirs
}

void Guard::tell(std::uintptr_t address) const {
  if (address - begin_ >= size_bytes_) return;
  std::string said =
      text(who_, ": memory that is away was touched: byte ", address - begin_, " of the planned block");
  const auto last = std::find_if(away_.rbegin(), away_.rend(),
                                 [&](const auto& gone) { return address - gone.first < gone.second.size_bytes; });
  if (last != away_.rend()) {
    const auto& [start, gone] = *last;
    said += text(", where ", gone.name, " of ", gone.size_bytes, " bytes lay until position ", gone.position,
                 " of the program, at its byte ", address - start);
  }
  said += "\n";
  if (::write(STDERR_FILENO, said.data(), said.size()) < 0) return;
}

void Guard::protect(std::uintptr_t begin, std::uintptr_t end, int protection) const {
  if (begin < end && ::mprotect(reinterpret_cast<void*>(begin), end - begin, protection) != 0) {
    throw_system_fault("mprotect", text("strict mode, for ", end - begin, " bytes of a planned block"), errno);
  }
}

}  // namespace tensile
