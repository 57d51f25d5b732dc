// SPDX-License-Identifier: MIT
// emulator/kernel.cpp: one kernel file, for the processor; SOURCE and its defines are the
// build's, as for nvcc.
#include SOURCE
