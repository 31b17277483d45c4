// SPDX-License-Identifier: Apache-2.0
// The function f of the gate of a gated feed-forward layer (Shazeer, arXiv 2002.05202): act = f(gate) up.
#ifndef BALLAST_MODEL_GATE_H
#define BALLAST_MODEL_GATE_H

typedef enum bl_gate {
  BL_GATE_SILU, // gate / (1 + exp(-gate)): SwiGLU
  BL_GATE_GELU, // GELU in its tanh form: GeGLU
} bl_gate_t;

#endif
