// Follows a step program's allocations: the n-th of an operator gets the address that was planned for it.
//
// An operator asks for the same sizes in the same order whenever it runs (calibration checks that), so a planned
// address is found by position and number, without a search. The program says where it is by a plain store before
// each operator. Planned addresses lie in one block, a window over pieces of the arena; whatever was not foreseen
// takes what the arena finds (best fit) and is counted, never refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "arena_hook.h"
#include "guard.hpp"
#include "window.hpp"

namespace tensile {

// One allocation that a position makes, and its place in the planned block.
struct Placed {
  std::uint64_t size_bytes;
  std::uint64_t offset_bytes;
};

// For every position of a program its allocations, in order: those of position p are first[p] .. first[p + 1] - 1.
struct Sheet {
  std::vector<std::uint32_t> first{0};
  std::vector<Placed> placed;
  std::vector<std::string> names{};  // of what each is, for strict mode; none, or one for each
};

// One allocation as it was made; moments count allocations and releases alike, `never` where it is still there.
struct Record {
  static constexpr std::uint64_t never = ~std::uint64_t{0};

  std::uint64_t position;
  std::uint64_t size_bytes;
  std::uint64_t address;
  std::uint64_t made_at;
  std::uint64_t released_at;
};

struct ScriptUsage {
  std::uint64_t planned = 0;     // allocations at their planned address
  std::uint64_t unplanned = 0;   // that no sheet names
  std::uint64_t mismatched = 0;  // of another size than the sheet says
  std::uint64_t occupied = 0;    // whose planned place was still taken
  std::uint64_t elsewhere = 0;   // by OpenMP threads, whose order nobody knows
  std::uint64_t used_bytes = 0;
  std::uint64_t high_water_bytes = 0;
};

// Stands between the shim and the arena. One thread runs the program; a release may come from any.
class Script {
 public:
  using Shim = int (*)(const tensile_arena_hook*);

  // `shim` is what the preloaded library exports as tensile_shim_serve, or a GPU's tensile_cuda_serve; `pieces` are
  // what the block is made of, where the arena's memory is not pages of this process.
  Script(const tensile_arena_hook& arena, Shim shim, std::unique_ptr<Pieces> pieces = nullptr);
  Script(const Script&) = delete;
  Script& operator=(const Script&) = delete;

  const tensile_arena_hook* hook() const noexcept { return &hook_; }

  // Where the program is. Written by the thread that runs it, right before what it names.
  std::uint64_t* position() noexcept { return &position_; }

  // Have a block of this size, from which planned offsets count; false where the arena has no room for it, and the
  // block is as it was. What lies in it beyond `kept` must be gone.
  bool reserve(std::uint64_t size_bytes, bool gathers = false);
  std::uint64_t kept(std::uint64_t size_bytes, bool gathers = false) const {
    return window_.kept(size_bytes, gathers);
  }
  std::uintptr_t block() const noexcept { return window_.begin(); }

  // Give the machine back the whole pages of a range in which no tensor lies; they read as zeros then. Nothing for a
  // range outside the block. Only where the block is this machine's memory. A page that cannot be given back stays.
  void discard(std::uintptr_t address, std::uint64_t size_bytes);

  // From now on what is not there cannot be touched in the block; `who` says whose it is (see Guard).
  void be_strict(std::string who);

  // From now on, whatever small the program asks for that no sheet names comes from these bytes, of the caller's, one
  // piece behind the other and none a second time; it is no part of the counts. 0 bytes: no longer. A recorded iteration
  // that asks for words which another does not (a GPU's seeds of random numbers) finds them there in every launch.
  void lend(std::uintptr_t address, std::uint64_t size_bytes);

  // Serve the calling thread from now on; `sheet` may be null, and must outlive `rest`. Returns what the shim says.
  int serve(const Sheet* sheet);
  int rest();

  void record();
  std::vector<Record> recorded();

  ScriptUsage usage() const;
  void reset_high_water();

 private:
  struct Block {
    std::uintptr_t address;
    std::uint64_t size_bytes;
  };

  // Words of the caller's, and how much of them is taken.
  struct Slab {
    std::uintptr_t address = 0;
    std::uint64_t size_bytes = 0;
    std::uint64_t taken_bytes = 0;
  };

  void* allocate(std::uint64_t size_bytes);
  int release(std::uintptr_t address);
  std::uintptr_t planned(std::uint64_t size_bytes);
  std::uintptr_t lent(std::uint64_t size_bytes);
  bool is_lent(std::uintptr_t address) const;
  std::string name_of(std::uint32_t entry) const;
  std::uintptr_t unplanned(std::uint64_t size_bytes);
  std::vector<Block>::iterator at(std::uintptr_t address);
  bool is_free(std::uintptr_t address, std::uint64_t size_bytes);
  bool is_planned(std::uintptr_t address) const noexcept { return address - block() < window_.end() - block(); }

  const tensile_arena_hook arena_;
  const Shim shim_;
  Window window_;
  std::unique_ptr<Guard> guard_;  // in strict mode
  tensile_arena_hook hook_;
  tensile_arena_hook block_hook_;  // the same, for what is given back to the block
  bool known_ = false;             // to the shim
  std::uint64_t position_ = 0;
  std::uint64_t followed_ = ~std::uint64_t{0};  // the position that `next_` belongs to
  std::uint32_t next_ = 0;
  const Sheet* sheet_ = nullptr;
  std::thread::id program_;

  mutable std::mutex changing_;
  std::vector<Block> alive_;  // by address
  std::vector<Slab> slabs_;   // all that were lent and may still be in use; the last one gives
  ScriptUsage usage_;
  bool lending_ = false;
  bool recording_ = false;
  std::uint64_t moment_ = 0;
  std::vector<Record> records_;
  std::unordered_map<std::uintptr_t, std::size_t> open_;  // records of what is still there
};

}  // namespace tensile
