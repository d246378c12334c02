// Tells an object whether it was created in this process or in one that this process was forked from.
#pragma once

namespace tensile {

// Return the number of forks between this process and the one that loaded the library. An object that stores the
// number at its creation can tell later whether it is a copy, whose threads, locks and memory belong to the parent.
unsigned forks() noexcept;

}  // namespace tensile
