// The messages by which the broker tells a trainer which regions have memory.
//
//   broker                                    trainer
//   Greeting                              ->
//                                         <-  change_done, once the trainer is ready to map regions
//   ChangeHeader, numbers of the regions  ->
//   a batch of descriptors, for `add`     ->
//                                         <-  change_done, for each batch
//                                         <-  change_done, once all regions are mapped or unmapped
//
// The first change adds all regions that have memory. Further changes follow for as long as both processes live.
// Instead of `change_done` a trainer answers `change_refused` if it cannot make a change, and then reads no more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace tensile::cuda {

// The most descriptors open at a time on either side; the usual limit of a process is 1,024.
inline constexpr std::size_t batch_regions = 64;

// The broker's first message. Its version prevents processes of different versions from misreading each other.
struct Greeting {
  std::uint64_t magic;
  std::uint64_t version;
  std::uint64_t region_bytes;
  std::uint64_t count;
};

inline constexpr std::uint64_t greeting_magic = 0x534e4f4947455254;  // "TREGIONS" as bytes in memory
inline constexpr std::uint64_t greeting_version = 3;

enum class ChangeKind : std::uint64_t { add = 1, remove = 2 };

struct RegionChange {
  ChangeKind kind;
  std::vector<std::uint64_t> regions;
};

inline constexpr std::byte change_done{'d'};
inline constexpr std::byte change_refused{'r'};

void send_change(int socket, const RegionChange& change);

// Receive the next change of a device with this many regions. Nothing if the broker has closed the socket.
std::optional<RegionChange> receive_change(int socket, std::uint64_t region_count);

void send_answer(int socket, std::byte answer);

// Wait for the trainer's answer. Raises a device fault if the trainer refuses or has ended.
void receive_answer(int socket);

}  // namespace tensile::cuda
