// File descriptors handed from process to process over a Unix socket.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "shared_memory.hpp"

namespace tensile {

// What one message can carry: the kernel's SCM_MAX_FD.
inline constexpr std::size_t max_descriptors = 253;

// Send duplicates in one message; the descriptors stay the caller's. A peer that has gone is a device fault.
void send_descriptors(int socket, std::span<const int> descriptors);

// Receive exactly as many, of one such message, closed at exec. Too few or too many is a device fault, which keeps
// none open.
std::vector<FileDescriptor> receive_descriptors(int socket, std::size_t count);

// A message of plain bytes before, between and after; whole, or a device fault.
void send_bytes(int socket, std::span<const std::byte> bytes);
void receive_bytes(int socket, std::span<std::byte> bytes);

}  // namespace tensile
