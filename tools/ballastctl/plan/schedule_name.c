// SPDX-License-Identifier: Apache-2.0
#include "ballastctl/plan/schedule_name.h"

#include "ballastctl/input_file.h"

#include "config/nearest.h"
#include "schedule/csv/csv.h"

#include <stdlib.h>
#include <string.h>

#define SCHEDULE_FILE_BYTES (1ull << 30) // p = 512, m = 4096 takes 40 MB

bl_status_t bl_ctl_schedule_read(const char *flag, const char *path, bl_schedule_t **schedule, bl_error_t *err) {
  char *text;
  size_t size;
  bl_status_t status = bl_ctl_input_file_read(flag, path, SCHEDULE_FILE_BYTES, &text, &size, err);
  if (status == BL_OK) {
    status = bl_csv_read(text, size, path, schedule, err);
    free(text);
  }
  return status;
}

bool bl_ctl_schedule_is_file(const char *schedule) {
  size_t length = strlen(schedule);
  return length > 4 && strcmp(schedule + length - 4, ".csv") == 0;
}

bl_status_t bl_ctl_schedule_find(const char *name, const bl_schedule_info_t **info, bl_error_t *err) {
  size_t count;
  const bl_schedule_info_t *infos = bl_schedule_infos(&count);
  bl_nearest_t nearest = {.name = name};
  for (size_t k = 0; k < count; k++) {
    bl_nearest_offer(&nearest, infos[k].name);
  }
  *info = bl_schedule_info_find(name);
  char advice[BL_NEAREST_ADVICE_BYTES] = "";
  if (*info != NULL) {
    return BL_OK;
  }
  const bool near = bl_nearest_is_near(name, nearest.best);
  return bl_error_set(err, BL_INVALID, "--schedule %s: no such schedule; %s%sballastctl schedule list names all", name,
                      near ? bl_nearest_advise(&nearest, advice) : "", near ? " " : "");
}
