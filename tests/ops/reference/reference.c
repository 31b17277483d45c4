// SPDX-License-Identifier: Apache-2.0
#include "ops/reference/reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void reference_linear_forward(const reference_linear_t *s, const double *x, const double *w, const double *bias,
                              const double *residual, double *y) {
  for (size_t row = 0; row < s->rows; row++) {
    for (size_t o = 0; o < s->out; o++) {
      double sum = (bias ? bias[o] : 0) + (residual ? residual[row * s->y_stride + o] : 0);
      for (size_t i = 0; i < s->in; i++) {
        sum += x[row * s->x_stride + i] * w[i * s->w_in + o * s->w_out];
      }
      y[row * s->y_stride + o] = sum;
    }
  }
}

void reference_linear_input(const reference_linear_t *s, const double *dy, const double *w, double *dx) {
  for (size_t row = 0; row < s->rows; row++) {
    for (size_t i = 0; i < s->in; i++) {
      for (size_t o = 0; o < s->out; o++) {
        dx[row * s->x_stride + i] += dy[row * s->y_stride + o] * w[i * s->w_in + o * s->w_out];
      }
    }
  }
}

void reference_linear_weight(const reference_linear_t *s, const double *x, const double *dy, double *dw) {
  for (size_t row = 0; row < s->rows; row++) {
    for (size_t o = 0; o < s->out; o++) {
      const double g = dy[row * s->y_stride + o];
      for (size_t i = 0; i < s->in; i++) {
        dw[i * s->w_in + o * s->w_out] += x[row * s->x_stride + i] * g;
      }
    }
  }
}

void reference_add_columns(size_t rows, size_t columns, const double *x, double *sums) {
  for (size_t row = 0; row < rows; row++) {
    for (size_t i = 0; i < columns; i++) {
      sums[i] += x[row * columns + i];
    }
  }
}

static void moments(size_t width, bool rms, double epsilon, const double *x, double *mean, double *inverse) {
  double sum = 0, squares = 0;
  for (size_t i = 0; i < width; i++) {
    sum += x[i];
  }
  *mean = rms ? 0 : sum / (double)width;
  for (size_t i = 0; i < width; i++) {
    squares += (x[i] - *mean) * (x[i] - *mean);
  }
  *inverse = 1 / sqrt(squares / (double)width + epsilon);
}

void reference_norm_forward(size_t rows, size_t width, double epsilon, double gain_offset, const double *x,
                            const double *gain, const double *bias, double *y, double *stats) {
  for (size_t row = 0; row < rows; row++) {
    double mean, inverse;
    moments(width, !bias, epsilon, x + row * width, &mean, &inverse);
    if (bias) {
      stats[row] = mean;
      stats[rows + row] = inverse;
    } else {
      stats[row] = inverse;
    }
    for (size_t i = 0; i < width; i++) {
      y[row * width + i] = (x[row * width + i] - mean) * inverse * (gain_offset + gain[i]) + (bias ? bias[i] : 0);
    }
  }
}

void reference_norm_backward(size_t rows, size_t width, bool rms, double epsilon, double gain_offset, const double *dy,
                             const double *x, const double *gain, const double *residual_gradient, double *dx,
                             double *dgain, double *dbias) {
  for (size_t i = 0; i < width; i++) {
    dgain[i] = 0;
    if (!rms) {
      dbias[i] = 0;
    }
  }
  for (size_t row = 0; row < rows; row++) {
    double mean, inverse, sum = 0, dot = 0;
    moments(width, rms, epsilon, x + row * width, &mean, &inverse);
    for (size_t i = 0; i < width; i++) {
      const double normalized = (x[row * width + i] - mean) * inverse, g = dy[row * width + i];
      dgain[i] += g * normalized;
      if (!rms) {
        dbias[i] += g;
      }
      sum += g * (gain_offset + gain[i]);
      dot += g * (gain_offset + gain[i]) * normalized;
    }
    for (size_t i = 0; i < width; i++) {
      const double normalized = (x[row * width + i] - mean) * inverse;
      const double centre = rms ? 0 : sum / (double)width;
      dx[row * width + i] =
          inverse * (dy[row * width + i] * (gain_offset + gain[i]) - centre - normalized * dot / (double)width) +
          (residual_gradient ? residual_gradient[row * width + i] : 0);
    }
  }
}

// A head is a row of RMSNorm.
static void norm_head(const reference_head_norm_t *s, size_t row, size_t head, const double *qkv, const double *gain,
                      double *y) {
  const size_t at = (row * (s->heads + 2 * s->kv_heads) + head) * s->head_dim;
  double unused;
  reference_norm_forward(1, s->head_dim, s->epsilon, s->gain_offset, qkv + at, gain, NULL, y + at, &unused);
}

void reference_head_norm_forward(const reference_head_norm_t *s, const double *qkv, const double *query_gain,
                                 const double *key_gain, double *y) {
  for (size_t row = 0; row < s->rows; row++) {
    for (size_t head = 0; head < s->heads + s->kv_heads; head++) {
      norm_head(s, row, head, qkv, head < s->heads ? query_gain : key_gain, y);
    }
    for (size_t i = 0; i < s->kv_heads * s->head_dim; i++) {
      const size_t at = ((row + 1) * (s->heads + 2 * s->kv_heads) - s->kv_heads) * s->head_dim + i;
      y[at] = qkv[at];
    }
  }
}

void reference_head_norm_backward(const reference_head_norm_t *s, const double *dy, const double *qkv,
                                  const double *query_gain, const double *key_gain, double *dqkv, double *partials) {
  double *dgain = malloc(s->head_dim * sizeof *dgain);
  for (size_t i = 0; i < 2 * s->head_dim; i++) {
    partials[i] = 0;
  }
  for (size_t row = 0; row < s->rows; row++) {
    for (size_t head = 0; head < s->heads + 2 * s->kv_heads; head++) {
      const size_t at = (row * (s->heads + 2 * s->kv_heads) + head) * s->head_dim;
      const bool query = head < s->heads, value = head >= s->heads + s->kv_heads;
      if (!value) {
        reference_norm_backward(1, s->head_dim, true, s->epsilon, s->gain_offset, dy + at, qkv + at,
                                query ? query_gain : key_gain, NULL, dqkv + at, dgain, NULL);
      }
      for (size_t i = 0; i < s->head_dim; i++) {
        if (value) {
          dqkv[at + i] = dy[at + i];
        } else {
          partials[(query ? 0 : s->head_dim) + i] += dgain[i];
        }
      }
    }
  }
  free(dgain);
}

static const double root_2_over_pi = 0.79788456080286535588;

double reference_gelu(double x) {
  return 0.5 * x * (1 + tanh(root_2_over_pi * (x + 0.044715 * x * x * x)));
}

double reference_gelu_slope(double x) {
  const double t = tanh(root_2_over_pi * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root_2_over_pi * (1 + 3 * 0.044715 * x * x);
}

double reference_silu(double x) {
  return x / (1 + exp(-x));
}

double reference_silu_slope(double x) {
  const double s = 1 / (1 + exp(-x));
  return s + x * s * (1 - s);
}

double reference_gate(bl_gate_t gate, double x) {
  return gate == BL_GATE_GELU ? reference_gelu(x) : reference_silu(x);
}

double reference_gate_slope(bl_gate_t gate, double x) {
  return gate == BL_GATE_GELU ? reference_gelu_slope(x) : reference_silu_slope(x);
}

void reference_rope(size_t batch, size_t first, size_t seq, size_t heads, size_t kv_heads, size_t head_dim, size_t dims,
                    double theta, double direction, double *qkv) {
  const size_t stride = (heads + 2 * kv_heads) * head_dim, half = dims / 2;
  for (size_t row = 0; row < batch * seq; row++) {
    for (size_t head = 0; head < heads + kv_heads; head++) {
      double *v = qkv + row * stride + head * head_dim;
      for (size_t i = 0; i < half; i++) {
        const double angle = (double)(first + row % seq) * pow(theta, -2.0 * (double)i / (double)dims);
        const double c = cos(angle), s = direction * sin(angle), a = v[i], b = v[half + i];
        v[i] = a * c - b * s;
        v[half + i] = b * c + a * s;
      }
    }
  }
}

// Element d of head `head` (0..heads + 2 kv_heads) at `position` of sequence b.
static size_t at(const reference_attention_t *s, size_t b, size_t position, size_t head, size_t d) {
  return ((b * s->seq + position) * (s->heads + 2 * s->kv_heads) + head) * s->head_dim + d;
}

// The first position that the query at position i sees, and what scores are multiplied with.
static size_t first_of(const reference_attention_t *s, size_t i) {
  return s->window != 0 && i >= s->window ? i - s->window + 1 : 0;
}

static double scale_of(const reference_attention_t *s) {
  return s->scale != 0 ? s->scale : 1 / sqrt((double)s->head_dim);
}

double reference_softcap(double softcap, double x) {
  return softcap == 0 ? x : softcap * tanh(x / softcap);
}

double reference_softcap_slope(double softcap, double softcapped) {
  return softcap == 0 ? 1 : 1 - softcapped / softcap * (softcapped / softcap);
}

static double score_of(const reference_attention_t *s, const double *qkv, size_t b, size_t head, size_t i, size_t j) {
  const size_t key = s->heads + head / (s->heads / s->kv_heads);
  double sum = 0;
  for (size_t d = 0; d < s->head_dim; d++) {
    sum += qkv[at(s, b, i, head, d)] * qkv[at(s, b, j, key, d)];
  }
  return reference_softcap(s->softcap, scale_of(s) * sum);
}

void reference_attention_forward(const reference_attention_t *s, const double *qkv, double *att, double *probabilities,
                                 double *log_sums) {
  for (size_t b = 0; b < s->batch; b++) {
    for (size_t head = 0; head < s->heads; head++) {
      const size_t value = s->heads + head / (s->heads / s->kv_heads) + s->kv_heads;
      for (size_t i = 0; i < s->seq; i++) {
        const size_t first = first_of(s, i);
        double *p = probabilities + ((b * s->heads + head) * s->seq + i) * s->seq;
        double largest = -INFINITY, sum = 0;
        for (size_t j = first; j <= i; j++) {
          p[j] = score_of(s, qkv, b, head, i, j);
          largest = p[j] > largest ? p[j] : largest;
        }
        for (size_t j = first; j <= i; j++) {
          sum += exp(p[j] - largest);
        }
        log_sums[(b * s->heads + head) * s->seq + i] = largest + log(sum);
        for (size_t j = 0; j < s->seq; j++) {
          p[j] = j >= first && j <= i ? exp(p[j] - largest) / sum : 0;
        }
        for (size_t d = 0; d < s->head_dim; d++) {
          double o = 0;
          for (size_t j = 0; j <= i; j++) {
            o += p[j] * qkv[at(s, b, j, value, d)];
          }
          att[((b * s->seq + i) * s->heads + head) * s->head_dim + d] = o;
        }
      }
    }
  }
}

void reference_attention_backward(const reference_attention_t *s, const double *datt, const double *qkv,
                                  const double *probabilities, double *dqkv) {
  const double scale = scale_of(s);
  const size_t total = s->batch * s->seq * (s->heads + 2 * s->kv_heads) * s->head_dim;
  double *dp = calloc(s->seq, sizeof *dp);
  for (size_t i = 0; i < total; i++) {
    dqkv[i] = 0;
  }
  for (size_t b = 0; b < s->batch; b++) {
    for (size_t head = 0; head < s->heads; head++) {
      const size_t key = s->heads + head / (s->heads / s->kv_heads), value = key + s->kv_heads;
      for (size_t i = 0; i < s->seq; i++) {
        const double *p = probabilities + ((b * s->heads + head) * s->seq + i) * s->seq;
        const double *g = datt + ((b * s->seq + i) * s->heads + head) * s->head_dim;
        double dot = 0;
        for (size_t j = 0; j <= i; j++) {
          dp[j] = 0;
          for (size_t d = 0; d < s->head_dim; d++) {
            dp[j] += g[d] * qkv[at(s, b, j, value, d)];
            dqkv[at(s, b, j, value, d)] += p[j] * g[d];
          }
          dot += p[j] * dp[j];
        }
        for (size_t j = 0; j <= i; j++) {
          const double slope =
              s->softcap == 0 || p[j] == 0 ? 1 : reference_softcap_slope(s->softcap, score_of(s, qkv, b, head, i, j));
          const double ds = p[j] * (dp[j] - dot) * slope * scale;
          for (size_t d = 0; d < s->head_dim; d++) {
            dqkv[at(s, b, i, head, d)] += ds * qkv[at(s, b, j, key, d)];
            dqkv[at(s, b, j, key, d)] += ds * qkv[at(s, b, i, head, d)];
          }
        }
      }
    }
  }
  free(dp);
}

double reference_cross_entropy(size_t vocab, const double *logits, int64_t label, double *gradient) {
  if (label < 0) {
    memset(gradient, 0, vocab * sizeof *gradient);
    return 0;
  }
  double largest = -INFINITY, sum = 0;
  for (size_t i = 0; i < vocab; i++) {
    largest = logits[i] > largest ? logits[i] : largest;
  }
  for (size_t i = 0; i < vocab; i++) {
    sum += exp(logits[i] - largest);
  }
  for (size_t i = 0; i < vocab; i++) {
    gradient[i] = exp(logits[i] - largest) / sum - (i == (size_t)label ? 1 : 0);
  }
  return largest + log(sum) - logits[label];
}
