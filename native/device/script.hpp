// Gives the allocations of a step program their planned addresses: the n-th allocation of an operator gets the
// address that the plan has for it.
//
// An operator requests the same sizes in the same order whenever it runs (calibration checks that), so a planned
// address is looked up by position and number, without a search. The program announces its position by a plain store
// before each operator. Planned addresses lie in one block, a window over pieces of the arena. An allocation without
// a planned address takes the position's room, if the sheet has one; else it is counted and gets the arena's best
// fit. It is not refused, and the excess over the plan is remembered.
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
#include "excess.hpp"
#include "guard.hpp"
#include "window.hpp"

namespace tensile {

// One planned allocation of a position: its size and its place in the planned block.
struct Placed {
  std::uint64_t size_bytes;
  std::uint64_t offset_bytes;
};

// The planned allocations of all positions of a program, in order. Position p has entries first[p] .. first[p + 1] -
// 1.
struct Sheet {
  std::vector<std::uint32_t> first{0};
  std::vector<Placed> placed;
  std::vector<std::string> names{};  // names of the tensors, for strict mode; empty, or one per entry
  std::vector<Placed> rooms{};       // by position: memory for allocations of sizes that the position does not list
};

// One recorded allocation. Moments count allocations and releases together; `released_at` is `never` for an
// allocation that was not released.
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
  std::uint64_t unplanned = 0;   // allocations that the arena placed
  std::uint64_t mismatched = 0;  // allocations whose size none of the position's remaining entries has
  std::uint64_t occupied = 0;    // allocations whose planned place was still in use
  std::uint64_t elsewhere = 0;   // allocations by OpenMP threads, whose order varies
  std::uint64_t used_bytes = 0;
  std::uint64_t high_water_bytes = 0;
};

// Serves allocations between the shim and the arena. One thread runs the program; any thread may release memory.
class Script {
 public:
  using Shim = int (*)(const tensile_arena_hook*);

  // `shim` is the function tensile_shim_serve of the preloaded library, or tensile_cuda_serve on a GPU. `pieces` maps
  // the block; null if the arena's memory consists of pages of this process.
  Script(const tensile_arena_hook& arena, Shim shim, std::unique_ptr<Pieces> pieces = nullptr);
  Script(const Script&) = delete;
  Script& operator=(const Script&) = delete;

  const tensile_arena_hook* hook() const noexcept { return &hook_; }

  // The program's position. The thread that runs the program stores the position of an operator right before the
  // operator.
  std::uint64_t* position() noexcept { return &position_; }

  // Resize the block, at whose start planned offsets begin. False if the arena has no room, and then the block keeps
  // its size. All tensors beyond `kept` must have been released.
  bool reserve(std::uint64_t size_bytes, bool gathers = false);
  std::uint64_t kept(std::uint64_t size_bytes, bool gathers = false) const {
    return window_.kept(size_bytes, gathers);
  }
  std::uintptr_t block() const noexcept { return window_.begin(); }

  // Let planned addresses lie in this many bytes after the block as well, whose memory comes and goes as a round
  // lends it (lent_regions.hpp). Nothing is planned there while it has no memory. All tensors there must have been
  // released.
  void extend(std::uint64_t size_bytes);

  // Give the whole pages of a range without tensors back to the machine; they read as zeros afterwards. Ignores
  // ranges outside the block, and keeps pages that cannot be given back. Only for a block in this machine's memory.
  void discard(std::uintptr_t address, std::uint64_t size_bytes);

  // Enable strict mode: memory of the block without a tensor cannot be accessed. `who` names the owner in messages
  // (see Guard).
  void be_strict(std::string who);

  // From now on, serve small allocations that have no planned address from this memory of the caller. Each gets a
  // piece of its own, which is never reused, and the usage does not count them. `size_bytes` 0 ends this. A recorded
  // iteration may need words that others do not (a GPU's random seeds); every launch of the recording uses the same
  // pieces.
  void lend(std::uintptr_t address, std::uint64_t size_bytes);

  // Serve the calling thread from now on. `sheet` may be null, and must outlive the call of `rest`. Returns the
  // shim's result, 0 if it succeeded.
  int serve(const Sheet* sheet);
  int rest();

  void record();
  std::vector<Record> recorded();

  ScriptUsage usage() const;

  // Return how far positions of the sheet have exceeded their planned allocations since the last call.
  std::vector<Excess> take_excess();
  void reset_high_water();

 private:
  struct Block {
    std::uintptr_t address;
    std::uint64_t size_bytes;
  };

  // Memory of the caller that was lent, and how much of it is in use.
  struct Slab {
    std::uintptr_t address = 0;
    std::uint64_t size_bytes = 0;
    std::uint64_t taken_bytes = 0;
  };

  void* allocate(std::uint64_t size_bytes);
  int release(std::uintptr_t address);
  std::uintptr_t take_planned(std::uint64_t size_bytes);
  std::uintptr_t take_room(std::uint64_t size_bytes);
  std::uintptr_t take_lent(std::uint64_t size_bytes);
  bool is_lent(std::uintptr_t address) const;
  bool is_never_served(std::uint64_t size_bytes) const;
  std::string name_of(std::uint32_t entry) const;
  std::uintptr_t take_unplanned(std::uint64_t size_bytes);
  std::vector<Block>::iterator at(std::uintptr_t address);
  bool is_free(std::uintptr_t address, std::uint64_t size_bytes);
  std::uint64_t planned_bytes() const noexcept { return window_.size_bytes() + extra_bytes_; }
  bool is_planned(std::uintptr_t address) const noexcept { return address - block() < window_.end() - block(); }

  const tensile_arena_hook arena_;
  const Shim shim_;
  const bool is_foreign_;  // whether the arena's memory is a GPU's
  Window window_;
  std::uint64_t extra_bytes_ = 0;  // after the window
  std::unique_ptr<Guard> guard_;   // in strict mode
  tensile_arena_hook hook_;
  tensile_arena_hook block_hook_;  // the same functions, for the address range of the block
  bool known_ = false;             // whether the shim has been given `block_hook_`
  std::uint64_t position_ = 0;
  std::uint64_t followed_ = ~std::uint64_t{0};  // the position that `next_` belongs to
  std::uint32_t next_ = 0;
  const Sheet* sheet_ = nullptr;
  bool unlisted_ = false;  // whether the position lists no place for the allocation that is being made
  std::thread::id program_;

  mutable std::mutex changing_;
  std::vector<Block> alive_;  // by address
  std::vector<Slab> slabs_;   // all that were lent and may still be in use; allocations come from the last
  ScriptUsage usage_;
  ExcessLog excess_;
  bool lending_ = false;
  bool recording_ = false;
  std::uint64_t moment_ = 0;
  std::vector<Record> records_;
  std::unordered_map<std::uintptr_t, std::size_t> open_;  // records of allocations not yet released, by address
};

}  // namespace tensile
