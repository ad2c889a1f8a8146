//! farmem's packets against independent sources: the vectors in testdata, and scapy.

mod scapy;
mod vector_file;
mod vectors;
