// Strict mode of a planned block: memory of released tensors cannot be accessed.
//
// A tensor that was released or swapped out leaves its bytes behind, so a later read of them may go unnoticed. Strict
// mode overwrites these bytes and makes whole pages without tensors inaccessible. A process that accesses such a page
// ends by the memory fault, after it has written which tensor lay there and when that tensor was released. Every
// allocation makes system calls, so strict mode is for debugging.
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

  // `who` begins the message. Only the guard created last reports faults; no guard is ever deleted.
  Guard(std::string who, std::uintptr_t begin);
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // Protect the whole block again after its size or its pages have changed; pages of live tensors stay accessible.
  void cover(std::uint64_t size_bytes);

  // Make a tensor's pages accessible when the tensor is allocated, at this position of the program.
  void open(std::uintptr_t address, std::uint64_t size_bytes, std::string name, std::uint64_t position);

  // Overwrite a tensor when it is released, and close the whole pages around it that hold no tensor.
  void shut(std::uintptr_t address, std::uint64_t position);

 private:
  struct Tensor {
    std::uint64_t size_bytes;
    std::string name;
    std::uint64_t position;  // of its allocation; after its release, of its release
  };

  static void on_fault(int number, siginfo_t* info, void* context);
  void report(std::uintptr_t address) const;
  void protect(std::uintptr_t begin, std::uintptr_t end, int protection) const;

  const std::string who_;
  const std::uintptr_t begin_;
  std::uint64_t size_bytes_ = 0;
  std::map<std::uintptr_t, Tensor> live_;                   // by address
  std::deque<std::pair<std::uintptr_t, Tensor>> released_;  // the latest last
};

}  // namespace tensile
