// SPDX-License-Identifier: Apache-2.0
// The unit in which stores lend memory: a slot is a multiple of it.
#ifndef BALLAST_LEASE_GRANULE_H
#define BALLAST_LEASE_GRANULE_H

#define BL_LEASE_GRANULE_BYTES 65536u

#endif
