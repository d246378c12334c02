// Strict mode of a planned block: memory that is away cannot be touched.
//
// A tensor that was released or swapped out leaves its bytes behind, and what still reads them computes with luck.
// Here they are overwritten, whole pages that hold nothing are closed, and the process that touches one dies by the
// fault, after saying what lay there and when it went. System calls at every allocation: for debugging.
#pragma once

#include <csignal>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

namespace tensile {

class Guard {
 public:
  static constexpr unsigned char poison = 0xDB;

  // `who` begins the message. Of all guards the latest says what a fault means; none is ever deleted.
  Guard(std::string who, std::uintptr_t begin);
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // The block has this size and other pages from now on: those of what is there are open.
  void cover(std::uint64_t size_bytes);

  // Something of this name is there, made at this position of the program.
  void open(std::uintptr_t address, std::uint64_t size_bytes, std::string name, std::uint64_t position);

  // It went.
  void shut(std::uintptr_t address, std::uint64_t position);

 private:
  struct Held {
    std::uint64_t size_bytes;
    std::string name;
    std::uint64_t position;  // at which it was made, or went
  };

  static void on_fault(int number, siginfo_t* info, void* context);
  void tell(std::uintptr_t address) const;
  void protect(std::uintptr_t begin, std::uintptr_t end, int protection) const;

  const std::string who_;
  const std::uintptr_t begin_;
  std::uint64_t size_bytes_ = 0;
  std::map<std::uintptr_t, Held> here_;
  std::deque<std::pair<std::uintptr_t, Held>> away_;  // the latest last
};

}  // namespace tensile
