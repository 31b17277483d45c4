// SPDX-License-Identifier: Apache-2.0
#include "datapath/frame_writer.h"

#include "datapath/block.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

void bl_frame_writer_init(bl_frame_writer_t *writer, bl_stream_t *stream) {
  memset(writer, 0, sizeof *writer);
  writer->stream = stream;
}

// Closes the first `count` passed descriptors: they were sent, or are dropped.
static void close_passed(bl_frame_writer_t *writer, size_t count) {
  for (size_t i = 0; i < count; i++) {
    close(writer->passed[i].fd);
  }
  writer->passed_count -= count;
  memmove(writer->passed, writer->passed + count, writer->passed_count * sizeof writer->passed[0]);
}

void bl_frame_writer_cleanup(bl_frame_writer_t *writer) {
  close_passed(writer, writer->passed_count);
  writer->begin = writer->end = 0;
  writer->chunk_bytes = 0;
}

// Moves queued bytes to the start of the buffer.
static void compact(bl_frame_writer_t *writer) {
  memmove(writer->buffer, writer->buffer + writer->begin, writer->end - writer->begin);
  for (size_t i = 0; i < writer->passed_count; i++) {
    writer->passed[i].at -= writer->begin;
  }
  writer->end -= writer->begin;
  writer->begin = 0;
}

static uint32_t body_bytes(bl_frame_kind_t kind, const void *body) {
  const uint32_t fixed = bl_frame_fixed_body_bytes(kind);
  return body == NULL ? 0 : fixed != 0 ? fixed : (uint32_t)strnlen(body, BL_FRAME_TEXT_BYTES);
}

bool bl_frame_writer_put(bl_frame_writer_t *writer, const bl_frame_t *frame, const void *body, const int *fds,
                         size_t fd_count) {
  bl_frame_t own = *frame;
  own.body_bytes = body_bytes(frame->kind, body);
  const size_t need = BL_FRAME_HEADER_BYTES + own.body_bytes;
  if (writer->end + need > sizeof writer->buffer && writer->begin > 0) {
    compact(writer);
  }
  if (writer->end + need > sizeof writer->buffer || writer->passed_count + fd_count > BL_WRITER_DESCRIPTORS) {
    return false;
  }
  // Duplicates, because the caller may close its own before they are sent.
  for (size_t i = 0; i < fd_count; i++) {
    const int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
      while (i-- > 0) {
        close(writer->passed[--writer->passed_count].fd);
      }
      return false;
    }
    writer->passed[writer->passed_count].at = writer->end;
    writer->passed[writer->passed_count++].fd = fd;
  }
  bl_frame_encode(&own, writer->buffer + writer->end);
  if (own.body_bytes > 0) {
    memcpy(writer->buffer + writer->end + BL_FRAME_HEADER_BYTES, body, own.body_bytes);
  }
  writer->end += need;
  return true;
}

size_t bl_frame_writer_free_frames(const bl_frame_writer_t *writer) {
  return (sizeof writer->buffer - (writer->end - writer->begin)) / BL_FRAME_HEADER_BYTES;
}

static bl_frame_writer_result_t write_failed(void) {
  return errno == EAGAIN ? BL_WRITER_AGAIN : BL_WRITER_BROKEN;
}

static bl_frame_writer_result_t flush_chunk(bl_frame_writer_t *writer) {
  while (writer->chunk_bytes > 0) {
    struct iovec parts[2];
    size_t count = 0, header_left = 0;
    if (writer->chunk_at < BL_FRAME_HEADER_BYTES) {
      header_left = BL_FRAME_HEADER_BYTES - writer->chunk_at;
      parts[count++] = (struct iovec){.iov_base = writer->header + writer->chunk_at, .iov_len = header_left};
    }
    size_t body_at = writer->chunk_at + header_left - BL_FRAME_HEADER_BYTES;
    parts[count++] =
        (struct iovec){.iov_base = (uint8_t *)writer->chunk + body_at, .iov_len = writer->chunk_bytes - body_at};
    ssize_t sent = bl_stream_write(writer->stream, parts, count, NULL, 0);
    if (sent <= 0) {
      return write_failed();
    }
    writer->chunk_at += (uint32_t)sent;
    if (writer->chunk_at == BL_FRAME_HEADER_BYTES + writer->chunk_bytes) {
      writer->chunk_bytes = 0;
    }
  }
  return BL_WRITER_DONE;
}

bl_frame_writer_result_t bl_frame_writer_flush(bl_frame_writer_t *writer) {
  bl_frame_writer_result_t result = flush_chunk(writer);
  while (result == BL_WRITER_DONE && writer->begin < writer->end) {
    // Descriptors are sent with the first byte of their frame, so a write ends before that byte or begins with it.
    int fds[BL_WRITER_DESCRIPTORS];
    size_t count = 0;
    while (count < writer->passed_count && writer->passed[count].at == writer->begin) {
      fds[count] = writer->passed[count].fd;
      count++;
    }
    const size_t until = count < writer->passed_count ? writer->passed[count].at : writer->end;
    struct iovec part = {.iov_base = writer->buffer + writer->begin, .iov_len = until - writer->begin};
    ssize_t sent = bl_stream_write(writer->stream, &part, 1, fds, count);
    if (sent <= 0) {
      return write_failed();
    }
    close_passed(writer, count);
    writer->begin += (size_t)sent;
  }
  if (result == BL_WRITER_DONE) {
    writer->begin = writer->end = 0;
  }
  return result;
}

bl_frame_writer_result_t bl_frame_writer_send(bl_frame_writer_t *writer, bl_frame_sender_t *sender, unsigned most) {
  bl_frame_writer_result_t result = bl_frame_writer_flush(writer);
  while (result == BL_WRITER_DONE && sender->at < sender->frame.bytes && most-- > 0) {
    uint64_t rest = sender->frame.bytes - sender->at;
    uint32_t bytes = rest < BL_FRAME_CHUNK_BYTES ? (uint32_t)rest : BL_FRAME_CHUNK_BYTES;
    if (sender->verified) { // now, so that the kernel's copy finds the bytes in the cache
      sender->hash = bl_block_checksum_more(sender->hash, sender->from + sender->at, bytes);
    }
    bl_frame_t *frame = &sender->frame;
    frame->kind = BL_FRAME_DATA;
    frame->offset = sender->at;
    frame->body_bytes = bytes;
    frame->checksum = sender->hash;
    bl_frame_encode(frame, writer->header);
    writer->chunk = sender->from + sender->at;
    writer->chunk_bytes = bytes;
    writer->chunk_at = 0;
    sender->at += bytes;
    result = bl_frame_writer_flush(writer);
  }
  return result;
}

uint32_t bl_frame_writer_let_go(bl_frame_writer_t *writer, uint8_t *side) {
  if (writer->chunk_bytes == 0 || writer->chunk == side) {
    return 0;
  }
  const uint32_t begin =
      writer->chunk_at > BL_FRAME_HEADER_BYTES ? writer->chunk_at - (uint32_t)BL_FRAME_HEADER_BYTES : 0;
  memcpy(side + begin, writer->chunk + begin, writer->chunk_bytes - begin);
  writer->chunk = side;
  return writer->chunk_bytes - begin;
}
