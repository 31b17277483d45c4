// SPDX-License-Identifier: Apache-2.0
#include "ops/reference/reference.h"

#include <math.h>
#include <stdlib.h>

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

void reference_linear_weight(const reference_linear_t *s, const double *x, const double *dy, double *dw,
                             double *dbias) {
  for (size_t row = 0; row < s->rows; row++) {
    for (size_t o = 0; o < s->out; o++) {
      const double g = dy[row * s->y_stride + o];
      for (size_t i = 0; i < s->in; i++) {
        dw[i * s->w_in + o * s->w_out] += x[row * s->x_stride + i] * g;
      }
      if (dbias) {
        dbias[o] += g;
      }
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

void reference_norm_forward(size_t rows, size_t width, double epsilon, const double *x, const double *gain,
                            const double *bias, double *y, double *stats) {
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
      y[row * width + i] = (x[row * width + i] - mean) * inverse * gain[i] + (bias ? bias[i] : 0);
    }
  }
}

void reference_norm_backward(size_t rows, size_t width, bool rms, double epsilon, const double *dy, const double *x,
                             const double *gain, const double *residual_gradient, double *dx, double *dgain,
                             double *dbias) {
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
      sum += g * gain[i];
      dot += g * gain[i] * normalized;
    }
    for (size_t i = 0; i < width; i++) {
      const double normalized = (x[row * width + i] - mean) * inverse;
      const double centre = rms ? 0 : sum / (double)width;
      dx[row * width + i] = inverse * (dy[row * width + i] * gain[i] - centre - normalized * dot / (double)width) +
                            (residual_gradient ? residual_gradient[row * width + i] : 0);
    }
  }
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

void reference_rope(size_t batch, size_t seq, size_t heads, size_t kv_heads, size_t head_dim, double theta,
                    double direction, double *qkv) {
  const size_t stride = (heads + 2 * kv_heads) * head_dim, half = head_dim / 2;
  for (size_t row = 0; row < batch * seq; row++) {
    for (size_t head = 0; head < heads + kv_heads; head++) {
      double *v = qkv + row * stride + head * head_dim;
      for (size_t i = 0; i < half; i++) {
        const double angle = (double)(row % seq) * pow(theta, -2.0 * (double)i / (double)head_dim);
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

void reference_attention_forward(const reference_attention_t *s, const double *qkv, double *att, double *probabilities,
                                 double *log_sums) {
  const double scale = 1 / sqrt((double)s->head_dim);
  for (size_t b = 0; b < s->batch; b++) {
    for (size_t head = 0; head < s->heads; head++) {
      const size_t key = s->heads + head / (s->heads / s->kv_heads), value = key + s->kv_heads;
      for (size_t i = 0; i < s->seq; i++) {
        double *p = probabilities + ((b * s->heads + head) * s->seq + i) * s->seq;
        double largest = -INFINITY, sum = 0;
        for (size_t j = 0; j < s->seq; j++) {
          p[j] = 0;
          for (size_t d = 0; j <= i && d < s->head_dim; d++) {
            p[j] += scale * qkv[at(s, b, i, head, d)] * qkv[at(s, b, j, key, d)];
          }
          largest = j <= i && p[j] > largest ? p[j] : largest;
        }
        for (size_t j = 0; j <= i; j++) {
          sum += exp(p[j] - largest);
        }
        log_sums[(b * s->heads + head) * s->seq + i] = largest + log(sum);
        for (size_t j = 0; j < s->seq; j++) {
          p[j] = j <= i ? exp(p[j] - largest) / sum : 0;
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
  const double scale = 1 / sqrt((double)s->head_dim);
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
          const double ds = p[j] * (dp[j] - dot) * scale;
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

double reference_cross_entropy(size_t vocab, const double *logits, size_t label, double *gradient) {
  double largest = -INFINITY, sum = 0;
  for (size_t i = 0; i < vocab; i++) {
    largest = logits[i] > largest ? logits[i] : largest;
  }
  for (size_t i = 0; i < vocab; i++) {
    sum += exp(logits[i] - largest);
  }
  for (size_t i = 0; i < vocab; i++) {
    gradient[i] = exp(logits[i] - largest) / sum - (i == label ? 1 : 0);
  }
  return largest + log(sum) - logits[label];
}
