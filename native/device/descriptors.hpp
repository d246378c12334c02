// Passing file descriptors between processes over a Unix socket.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "shared_memory.hpp"

namespace tensile {

// The most descriptors that one message can carry: the kernel's SCM_MAX_FD.
inline constexpr std::size_t max_descriptors = 253;

// Send duplicates of the descriptors in one message; the caller keeps the originals. Raises a device fault if the
// peer has ended.
void send_descriptors(int socket, std::span<const int> descriptors);

// Receive exactly `count` descriptors from one such message; they are closed at exec. Raises a device fault if the
// number differs, and then leaves none open.
std::vector<FileDescriptor> receive_descriptors(int socket, std::size_t count);

// Send or receive plain bytes before, between and after messages of descriptors. Raises a device fault if not all
// bytes could be transferred.
void send_bytes(int socket, std::span<const std::byte> bytes);
void receive_bytes(int socket, std::span<std::byte> bytes);

}  // namespace tensile
