// libgradwire_mpi.so: messages between the processes of one mpirun. The only file that sees mpi.h.

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1

#include "gradwire/comm/internal/mpi_plugin_engine.h"
#include "gradwire/comm/internal/plugin_table.h"
