// The layout of the device's shared file, version 5. Every process that maps the file uses exactly this layout.
//
//   offset  bytes  record
//        0     64  Header   magic, version, slots, capacity, region, regions, memory, host pool, last round
//       64     64  Lane     device to host: rate, clock, totals
//      128     64  Lane     host to device
//      192     64  Pool     the device as a whole: tally, high water, returned regions
//      256  64*64  Slot     one per job: state, epoch, pid, granted, tally, intent, posted, high water
//     4352   64*8  Word     one per job: its share of the pinned host pool (host_shares.hpp)
//     4864  64*64  Passage  one per job: how far it has come in its round (passages.hpp), the bytes lent to it
//     8960    8*n  Word     one per region, n of them: its owner
//   memory  n*region        the device's memory, at a page boundary, if the ledger was created with memory
//
// Each record has a cache line to itself, so that two jobs never contend for one line. The words of host shares and
// of owners share lines, because they change rarely.
//
// ## Regions
//
// Region i is the memory from i * region_bytes on in every process, so an offset means the same byte everywhere. The
// region's word names the one slot and epoch that own it. Every change of the word is a compare-and-swap, except from
// `wiping` to `free`: no other process changes a region in `wiping`, so the controller stores the word plainly.
//
//   free ──controller: hand out──► empty ──owner: engage──► used ──owner: disengage──► empty
//   │  ▲                           │ controller: take back   │ controller, when the owner's process is gone
//   │  └───────────────────────── wiping ◄───────────────────┘
//   ├──controller: withdraw──► absent ──controller: restore──► free
//   └──controller: pool──► pooled ──member of the round: borrow──► lent ──give back──► pooled
//                            │ controller: unpool                   │ controller, when the member's process is gone
//                            └──► wiping ──► free                   └──► wiping ──► pooled
//
// An owner marks an empty region `used` before it places an allocation there, and marks the region `empty` after the
// last use of the last allocation. Nothing else is needed to hand the region back: the controller takes empty regions
// when it lowers a grant, and an owner notices the loss when it tries to engage the region. Only the controller sets
// `wiping`: it gives the region's bytes back to the operating system before the region becomes free, so the next
// owner reads zeros. An `absent` region has no memory: the controller has returned the memory to the driver because
// other programs need it, and no claim is given the region. `backed` means that the operating system has set memory
// aside for the whole region, so that touching it can neither fail nor wait. A region whose epoch is over is in
// quarantine: its owner is dead, but a process that maps the region may still run. The total grant is derived from
// the number of words that are not free, so a process killed between two instructions leaves no second count to
// repair.
//
// ## Rounds
//
// Jobs that run in phases (a round) take turns with memory. The regions with which they do so belong to the round:
// the controller makes free regions `pooled`, and a member of the round makes them `lent` while it needs them. A
// region that is pooled or lent counts once in the total grant, whoever has it, so the grants never exceed the
// capacity although the members' peaks together may. A member's use may exceed its grant by `Passage::lent_share`,
// which is raised after its regions have become `lent` and lowered before they are given back.
//
// ## Bytes
//
// The count of bytes in use must stay exact when a process is killed between two instructions. A job's bytes are
// counted in two places, its slot and the pool, and no instruction changes both. So the pool's word (a *tally*) holds
// the bytes in use and also the slot and the sequence number of the move that changed it last. A move has three
// steps:
//
//   1. write the change, with the move's sequence number, into the slot's `intent`;
//   2. add the change to the pool's tally, signed with slot and sequence, by compare-and-swap;
//   3. add the change to the slot's own tally, with the same sequence.
//
// A process that replaces the pool's tally first copies the sequence of the old signature into `posted` of the slot
// that signed it. So for a process that died with an open intent, step 2 happened exactly if the pool's tally or
// `posted` carries that sequence. (Attiya, Ben-Baruch and Hendler, PODC 2018, call such objects recoverable.)
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tensile::layout {

using Word = std::atomic<std::uint64_t>;

inline constexpr std::uint64_t magic = 0x31454c49534e4554;  // "TENSILE1" as bytes in memory
inline constexpr std::uint32_t version = 5;
inline constexpr std::uint32_t slot_count = 64;
inline constexpr std::size_t line_bytes = 64;

inline constexpr std::uint64_t max_regions = std::uint64_t{1} << 20;  // bounds the time of reading all their words

// Values of Slot::state. While a slot is `releasing`, its bytes and regions are not yet back, and it cannot be
// claimed.
inline constexpr std::uint64_t state_free = 0;
inline constexpr std::uint64_t state_claimed = 1;
inline constexpr std::uint64_t state_releasing = 2;

struct alignas(line_bytes) Header {
  Word magic;  // written last: a process that reads it also reads the rest
  std::uint32_t version;
  std::uint32_t slot_count;
  std::uint64_t capacity_bytes;
  std::uint64_t region_bytes;
  std::uint64_t region_count;   // whole regions in the capacity
  std::uint64_t memory_offset;  // start of the memory in this file; 0 if the memory of each process is private
  std::uint64_t host_bytes;     // limit on the pinned host memory of all processes together
  Word last_over;               // number of the last round that is over; nobody waits in it any more
};

struct alignas(line_bytes) Lane {
  std::uint64_t bytes_per_s;
  Word free_ns;         // time of CLOCK_MONOTONIC at which all reservations so far end
  Word reserved_ns;     // total time reserved
  Word reserved_bytes;  // total bytes of all reservations
};

struct alignas(line_bytes) Pool {
  Word tally;
  Word high_water_bytes;  // raised before the tally is replaced; the mark is max(this, tally.used_bytes)
  Word returned;          // counts the times that regions became `pooled`; a futex (its low half)
};

struct alignas(line_bytes) Slot {
  Word state;
  Word epoch;  // advanced when the slot is revoked: writes with an older epoch are refused
  Word pid;
  Word granted_bytes;
  Word tally;
  Word intent;
  Word posted;
  Word high_water_bytes;
};

struct alignas(line_bytes) Passage {
  Word passed;      // Progress: only ever raised, by the job or by whoever plays its part; a futex (its low half)
  Word lent_share;  // HostShare: the bytes of its lent regions; changed by the job alone until its slot is released
};

struct Ledger {
  Header header;
  Lane out;
  Lane in;
  Pool pool;
  std::array<Slot, slot_count> slots;
  std::array<Word, slot_count> host_shares;
  std::array<Passage, slot_count> passages;
};

static_assert(Word::is_always_lock_free && sizeof(Word) == 8 && alignof(Word) == 8);
static_assert(sizeof(Header) == 64 && offsetof(Header, capacity_bytes) == 16);
static_assert(sizeof(Lane) == 64 && sizeof(Pool) == 64 && sizeof(Slot) == 64);
static_assert(offsetof(Ledger, out) == 64 && offsetof(Ledger, in) == 128 && offsetof(Ledger, pool) == 192);
static_assert(offsetof(Header, memory_offset) == 40 && offsetof(Header, host_bytes) == 48);
static_assert(offsetof(Ledger, slots) == 256 && offsetof(Ledger, host_shares) == 256 + slot_count * sizeof(Slot));
static_assert(offsetof(Header, last_over) == 56 && sizeof(Passage) == 64);
static_assert(offsetof(Ledger, passages) == offsetof(Ledger, host_shares) + slot_count * sizeof(Word));
static_assert(sizeof(Ledger) == offsetof(Ledger, passages) + slot_count * sizeof(Passage) && sizeof(Ledger) == 8960);

// Sequence numbers count a slot's moves and wrap around; they are only compared for equality with the latest number.
inline constexpr unsigned sequence_bits = 14;
inline constexpr std::uint64_t sequence_mask = (std::uint64_t{1} << sequence_bits) - 1;
inline constexpr unsigned used_bits = 44;
inline constexpr std::uint64_t max_bytes = (std::uint64_t{1} << used_bits) - 1;  // 16 TiB: more than a device has

constexpr std::uint64_t next(std::uint64_t sequence) { return (sequence + 1) & sequence_mask; }

// The bytes in use, with the sequence number and the slot of the move that set them: 14 bits, 6 bits, 44 bits.
struct Tally {
  std::uint64_t sequence;
  std::uint64_t slot;
  std::uint64_t used_bytes;

  constexpr std::uint64_t packed() const { return sequence << 50 | slot << used_bits | used_bytes; }
  static constexpr Tally unpacked(std::uint64_t word) {
    return {word >> 50, word >> used_bits & (slot_count - 1), word & max_bytes};
  }
};

// The change that a move is about to make, negative if it gives bytes back: 14 bits, 50 bits.
struct Intent {
  std::uint64_t sequence;
  std::int64_t change_bytes;

  constexpr std::uint64_t packed() const {
    return sequence << 50 | (static_cast<std::uint64_t>(change_bytes) & ((std::uint64_t{1} << 50) - 1));
  }
  static constexpr Intent unpacked(std::uint64_t word) {
    return {word >> 50, static_cast<std::int64_t>(word << sequence_bits) >> sequence_bits};
  }
};

// A slot's share of the host pool or of its round, and the low bits of the epoch that holds it: 20 bits, 44 bits.
struct HostShare {
  std::uint64_t epoch;
  std::uint64_t size_bytes;

  constexpr std::uint64_t packed() const { return epoch << used_bits | size_bytes; }
  static constexpr HostShare unpacked(std::uint64_t word) { return {word >> used_bits, word & max_bytes}; }
};

// How far a job has come: the number of its round, and the number of boundaries that it has passed in it. A later
// round compares greater than any number of an earlier one: 20 bits, 44 bits.
struct Progress {
  std::uint64_t round;
  std::uint64_t boundary;

  constexpr std::uint64_t packed() const { return round << used_bits | boundary; }
  static constexpr Progress unpacked(std::uint64_t word) { return {word >> used_bits, word & max_bytes}; }
};

inline constexpr std::uint64_t max_round = (std::uint64_t{1} << 20) - 1;
inline constexpr std::uint64_t max_boundary = max_bytes;

enum class RegionState : std::uint64_t {
  free = 0,
  empty = 1,
  used = 2,
  wiping = 3,
  absent = 4,
  pooled = 5,
  lent = 6
};

// The owner of a region: 3 bits, 1 bit, 6 bits, 54 bits. The word of a free region is 0, as in a new file.
struct Owner {
  RegionState state = RegionState::free;
  bool backed = false;
  std::uint64_t slot = 0;
  std::uint64_t epoch = 0;

  constexpr std::uint64_t packed() const {
    return static_cast<std::uint64_t>(state) << 61 | std::uint64_t{backed} << 60 | slot << 54 | epoch;
  }
  static constexpr Owner unpacked(std::uint64_t word) {
    return {static_cast<RegionState>(word >> 61), (word >> 60 & 1) != 0, word >> 54 & (slot_count - 1),
            word & ((std::uint64_t{1} << 54) - 1)};
  }
  friend constexpr bool operator==(const Owner&, const Owner&) = default;
};

static_assert(Owner{}.packed() == 0);
static_assert(Owner::unpacked(Owner{RegionState::used, true, 63, 5}.packed()) ==
              Owner{RegionState::used, true, 63, 5});
static_assert(Owner::unpacked(Owner{RegionState::absent}.packed()) == Owner{RegionState::absent});
static_assert(sequence_bits + 6 + used_bits == 64 && slot_count == 1U << 6);
static_assert(Intent::unpacked(Intent{sequence_mask, -5}.packed()).change_bytes == -5);
static_assert(Tally::unpacked(Tally{7, 63, max_bytes}.packed()).slot == 63);

}  // namespace tensile::layout
